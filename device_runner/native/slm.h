// The SLM's share of a round: export/slm/runner.py (SlmText) and hyco_npu/decode/drafters/slm.py (SlmRows).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "feeds.h"
#include "graph.h"
#include "kv_window.h"
#include "outputs.h"
#include "settings.h"
#include "timing.h"
#include "topk.h"
#include "tree.h"

namespace hyco {

// A graph of the SLM with its number of rows, and room for what goes in and comes out.
class SlmGraph {
 public:
  // `phase`: what a run of the graph is booked to.
  SlmGraph(const SlmConfig& config, Graph& graph, std::size_t rows, Phase phase);

  std::size_t rows() const { return feeds_.rows(); }
  const OutputBuffers& outputs() const { return outputs_; }
  // Runs the tree's rows that are not stored; their keys and values join the window's draft.
  void run(const RowTree& tree, const std::vector<Token>& tokens, const SlmTables& tables, KvWindow& window,
           Timing& timing);

 private:
  Graph& graph_;
  Phase phase_;
  TreeFeeds feeds_;
  OutputBuffers outputs_;
  std::vector<NewRows> new_rows_;  // by owner, within outputs_
};

// A row that was run: its token, the row it follows (none: the text), and its place among the drafted rows.
struct SlmRow {
  Token token = 0;
  std::shared_ptr<SlmRow> parent;
  std::optional<std::size_t> place;
};
using SlmRowPtr = std::shared_ptr<SlmRow>;

// A growing tree behind the text: rows of its nodes that are kept, and of every node that was run the SLM's choice.
struct SlmTree {
  GrowingTree tree;
  std::map<Node, SlmRowPtr> rows;
  std::map<Node, Token> likeliest;
};

struct SlmParts {
  const SlmConfig& config;
  const SlmTables& tables;
  Graph& draft;
  std::size_t draft_rows;
  Graph& prefill;
  std::size_t prefill_rows;
};

// One text at the SLM. Accepted tokens that were never run wait, and go in front of the next round's first pass.
class SlmRows {
 public:
  // What `parts` refers to must outlive this, but for the configuration.
  SlmRows(const SlmParts& parts, std::vector<Token> token_ids, const RoundSettings& settings);

  std::size_t rows_a_pass() const { return draft_.rows(); }
  // Rows that a first pass has left beside `nodes` nodes and the tokens that wait.
  std::size_t room(std::size_t nodes) const;
  // Takes accepted tokens behind the text; all but the last are run by the prefill graph. Drafts are forgotten.
  void extend(const std::vector<Token>& tokens, Timing& timing);
  // A tree whose root is the last accepted token. Throws RunnerError where that one's tree has been drafted.
  SlmTree plant() const;
  // Runs nodes, parents first, in one pass: the likeliest children of each.
  std::vector<std::vector<Candidate>> expand(SlmTree& grown, const std::vector<Node>& nodes, Timing& timing);
  // Lets what is text become text, and keeps the drafted rows of `nodes`, best first; the others matter no more.
  void keep(SlmTree& grown, const std::vector<Node>& nodes);
  // Takes what a round emitted: `path`, nodes of `grown` (none without a draft), and the tokens behind it.
  void commit(const std::vector<Token>& emitted, const SlmTree* grown, const std::vector<Node>& path);

 private:
  void run(const std::vector<SlmRowPtr>& rows, Timing& timing);
  std::vector<SlmRowPtr> front_rows() const;
  std::vector<SlmRowPtr> node_rows(SlmTree& grown, const std::vector<Node>& nodes, const SlmRowPtr& behind) const;
  void catch_up(Timing& timing);
  void accept(const std::vector<SlmRowPtr>& rows, const std::vector<SlmRowPtr>& still_drafted);

  const SlmTables& tables_;
  SlmGraph draft_;
  SlmGraph prefill_;
  CandidateScorer scorer_;
  std::size_t children_;
  KvWindow window_;
  std::vector<Token> waiting_;
  std::vector<SlmRowPtr> front_;
  std::vector<SlmRowPtr> drafted_;
};

}  // namespace hyco
