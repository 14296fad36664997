// Cosines and sines of a position: export/graphs/rope.py in float32.
#pragma once

#include <cstddef>
#include <vector>

#include "models.h"

namespace hyco {

class Rotation {
 public:
  Rotation(const RopeSpec& rope, std::size_t dim);

  // Writes cos and sin [dim] each; the first half of sin is negated.
  void write(std::size_t position, float* cosines, float* sines) const;

 private:
  std::vector<float> frequencies_;
};

}  // namespace hyco
