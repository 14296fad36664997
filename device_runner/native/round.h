// HyCo's round: hyco_npu/decode/drafters/hybrid.py and passes.py, tree for tree.
#pragma once

#include <optional>
#include <vector>

#include "guesses.h"
#include "head.h"
#include "settings.h"
#include "slm.h"
#include "timing.h"
#include "tree.h"

namespace hyco {

// The server's answer to a tree, or to a prompt: accepted rows of the tree, emitted tokens (the last has no keys and
// values at the verifier: it is the next root), and what the head needs.
struct Reply {
  std::vector<std::size_t> accepted;
  std::vector<Token> emitted;
  HeadUpdate update;
};

class HybridDrafter {
 public:
  // Throws UsageError where root, chain and siblings are more rows than the SLM's draft graph has.
  HybridDrafter(HeadDrafter head, SlmRows slm, const RoundSettings& settings);

  // Takes a prompt, or a further turn, and the first token.
  void begin(const std::vector<Token>& tokens, Reply reply);
  // Chain and siblings, one SLM pass over all of them, further ones over the best new nodes; then the cut.
  DraftTree draft(std::size_t max_depth);
  void commit(Reply reply);

  // Time since the last call.
  Timing take_timing();

 private:
  struct Sent {
    SlmTree grown;
    std::vector<Node> nodes;
  };

  void grow(SlmTree& grown, const std::vector<Node>& nodes, std::size_t max_depth);
  void grow_further(SlmTree& grown, std::size_t max_depth, const std::vector<Node>& always);
  std::vector<Node> best(const SlmTree& grown, std::size_t max_depth, const std::vector<Node>& always) const;

  HeadDrafter head_;
  SlmRows slm_;
  RoundSettings settings_;
  std::optional<Guesses> guesses_;
  std::optional<Sent> sent_;
  Timing timing_;
};

}  // namespace hyco
