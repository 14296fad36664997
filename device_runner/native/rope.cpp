#include "rope.h"

#include <cmath>

namespace hyco {

Rotation::Rotation(const RopeSpec& rope, std::size_t dim) : frequencies_(dim / 2) {
  for (std::size_t pair = 0; pair < frequencies_.size(); ++pair) {
    const float exponent = static_cast<float>(2 * pair) / static_cast<float>(dim);
    frequencies_[pair] = 1.0F / std::pow(rope.theta, exponent);
  }
  if (rope.proportional) {
    // the first part of the frequencies of the whole head turns, the rest stays at angle 0
    const auto rotated = static_cast<std::size_t>(rope.partial_rotary_factor * static_cast<double>(dim) / 2.0);
    for (std::size_t pair = rotated; pair < frequencies_.size(); ++pair) {
      frequencies_[pair] = 0.0F;
    }
  }
}

void Rotation::write(std::size_t position, float* cosines, float* sines) const {
  const std::size_t half = frequencies_.size();
  for (std::size_t pair = 0; pair < half; ++pair) {
    const float angle = static_cast<float>(position) * frequencies_[pair];
    const float cosine = std::cos(angle);
    const float sine = std::sin(angle);
    cosines[pair] = cosines[half + pair] = cosine;
    sines[pair] = -sine;
    sines[half + pair] = sine;
  }
}

}  // namespace hyco
