// The MTP head's share of a round: hyco_npu/decode/drafters/mtp.py and export/mtp/chain.py.
#pragma once

#include <vector>

#include "feeds.h"
#include "graph.h"
#include "outputs.h"
#include "settings.h"
#include "tables.h"
#include "timing.h"
#include "topk.h"
#include "tree.h"

namespace hyco {

// Nodes that the head has put into a tree: the chain from depth 1 down, siblings by depth, and at each depth of the
// chain its likeliest tokens, best first.
struct HeadNodes {
  std::vector<Node> chain;
  std::vector<Node> siblings;
  std::vector<std::vector<Candidate>> candidates;
};

class HeadDrafter {
 public:
  // `graph` and `table` must outlive this; `token_ids` maps columns to the verifier's vocabulary.
  HeadDrafter(const HeadConfig& config, Graph& graph, const EmbeddingTable& table, std::vector<Token> token_ids,
              const RoundSettings& settings);

  // Takes `tokens` tokens behind the text, and the verifier's rows of all that have one.
  void extend(std::size_t tokens, HeadUpdate update);

  // Runs the chain behind the tree's root, at most `max_depth` steps, and adds it with its siblings.
  HeadNodes add_to(GrowingTree& tree, std::size_t max_depth, Timing& timing);

 private:
  // Adds the likeliest token, which it returns, and its siblings.
  Token add_step(GrowingTree& tree, HeadNodes& nodes, Timing& timing);

  Graph& graph_;
  const EmbeddingTable& table_;
  RoundSettings settings_;
  HeadFeeds feeds_;
  OutputBuffers outputs_;
  std::size_t next_hidden_;
  CandidateScorer scorer_;
  HeadUpdate newest_;
  std::size_t length_ = 0;
};

}  // namespace hyco
