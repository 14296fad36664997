// The part of a decoding configuration that a hybrid drafter reads: hyco_npu/decode/config.py, names and defaults.
#pragma once

#include <cstddef>
#include <optional>

#include "topk.h"

namespace hyco {

struct GuessSettings {
  std::size_t runners_up = 4;
  std::size_t longest = 4;
  std::size_t shortest = 2;
};

struct RoundSettings {
  std::size_t nodes = 32;
  bool keep_chain = true;
  std::size_t steps = 4;
  std::size_t width = 2;
  std::size_t sibling_depth = 2;
  std::size_t passes = 1;
  std::size_t children = 8;
  std::size_t beam = 32;
  SourceScore head_score;
  SourceScore slm_score;
  std::optional<GuessSettings> guesses;
};

}  // namespace hyco
