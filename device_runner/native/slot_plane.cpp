#include "slot_plane.h"

#include <algorithm>
#include <cstring>

namespace hyco {

namespace {

// A quarter of the plane: at five rows a round, a window of 1,024 slots is moved back to the front every hundredth
// round or so (values) or never within a text (keys).
std::size_t slack(std::size_t bytes, std::size_t slots, std::size_t inner) {
  return std::max(bytes / 4, slots * inner);
}

}  // namespace

SlotPlane::SlotPlane(std::size_t outer, std::size_t slots, std::size_t inner_bytes)
    : outer_(outer),
      slots_(slots),
      inner_(inner_bytes),
      buffer_(bytes() + slack(bytes(), slots, inner_bytes), 0) {}

void SlotPlane::slide(std::size_t count) {
  const std::size_t step = std::min(count, slots_) * inner_;
  if (offset_ + step + bytes() > buffer_.size()) {
    std::memmove(buffer_.data(), data(), bytes());
    offset_ = 0;
  }
  offset_ += step;
}

}  // namespace hyco
