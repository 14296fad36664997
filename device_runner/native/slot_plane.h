// Slots of a cache as a graph reads them, [outer, slots, inner bytes], which slide without being moved.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hyco {

// Keys [heads, dim, slots] are outer = heads * dim, inner = one code; values [heads, slots, dim] are outer = heads,
// inner = dim codes. Letting the first n slots go moves the start of the tensor by n slots: what then stands in the
// last n slots of one line is what the next line has let go, and the caller writes it. So a full window slides by the
// size of its new rows, not by its own.
class SlotPlane {
 public:
  SlotPlane(std::size_t outer, std::size_t slots, std::size_t inner_bytes);

  std::size_t outer() const { return outer_; }
  std::size_t slots() const { return slots_; }
  std::size_t inner_bytes() const { return inner_; }
  std::size_t bytes() const { return outer_ * slots_ * inner_; }

  std::uint8_t* data() { return buffer_.data() + offset_; }
  const std::uint8_t* data() const { return buffer_.data() + offset_; }
  std::uint8_t* at(std::size_t outer, std::size_t slot) { return data() + (outer * slots_ + slot) * inner_; }
  const std::uint8_t* at(std::size_t outer, std::size_t slot) const {
    return data() + (outer * slots_ + slot) * inner_;
  }

  // Lets the first `count` slots of every line go; the last `count` hold anything until they are written.
  void slide(std::size_t count);

 private:
  std::size_t outer_;
  std::size_t slots_;
  std::size_t inner_;
  std::size_t offset_ = 0;
  std::vector<std::uint8_t> buffer_;
};

}  // namespace hyco
