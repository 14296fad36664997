// Room for a graph's outputs, and its logits as chunks of columns.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "affine.h"
#include "topk.h"

namespace hyco {

class OutputBuffers {
 public:
  explicit OutputBuffers(const Boundary& boundary);

  const std::vector<void*>& pointers() const { return pointers_; }
  // Throws RunnerError where the graph has no such output.
  std::size_t index(const std::string& name) const;
  const std::uint8_t* data(std::size_t index) const { return buffers_.at(index).data(); }

  // Columns and scale of `logits_0`, `logits_1`, ... in the order of their numbers; empty for a graph without logits.
  // Throws RunnerError for logits that are not uint16.
  std::vector<LogitsChunk> chunks() const;
  // Codes of one row of the logits, chunk by chunk.
  CodeRow logits(std::size_t row) const;

 private:
  const std::vector<BoundaryTensor>* tensors_;
  std::vector<std::vector<std::uint8_t>> buffers_;
  std::vector<void*> pointers_;
  std::vector<std::size_t> logits_;  // outputs that hold logits, by number
};

}  // namespace hyco
