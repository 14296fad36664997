#include "head.h"

#include <algorithm>
#include <utility>

#include "errors.h"

namespace hyco {

HeadDrafter::HeadDrafter(const HeadConfig& config, Graph& graph, const EmbeddingTable& table,
                         std::vector<Token> token_ids, const RoundSettings& settings)
    : graph_(graph),
      table_(table),
      settings_(settings),
      feeds_(config, graph.boundary()),
      outputs_(graph.boundary()),
      next_hidden_(outputs_.index("next_hidden")),
      scorer_(outputs_.chunks(), std::move(token_ids), std::nullopt, settings.head_score) {
  const std::size_t backbone = config.backbone;
  if (table_.width() != backbone || graph.boundary().outputs[next_hidden_].elements() != backbone) {
    throw RunnerError("the head works on states of " + std::to_string(backbone) + " values, its table has " +
                      std::to_string(table_.width()) + "; graph and table are of different exports");
  }
}

void HeadDrafter::extend(std::size_t tokens, HeadUpdate update) {
  const std::size_t backbone = table_.width();
  if (update.hidden.size() != backbone || update.embedding.size() != backbone) {
    throw RunnerError("a reply's hidden state has " + std::to_string(update.hidden.size()) + " values, " +
                      std::to_string(backbone) + " are needed");
  }
  feeds_.extend(update);
  newest_ = std::move(update);
  length_ += tokens;
}

HeadNodes HeadDrafter::add_to(GrowingTree& tree, std::size_t max_depth, Timing& timing) {
  if (newest_.hidden.empty() || length_ == 0) {
    throw RunnerError("the head has no state before the first reply");
  }
  // The first step's embedding comes from the server: the root may lie outside the keep set.
  std::vector<float> embedding = newest_.embedding;
  std::vector<float> hidden = newest_.hidden;
  {
    const Timed timed(timing, Phase::kFeeds);
    feeds_.begin(length_ - 1);
  }
  HeadNodes nodes;
  const std::size_t steps = std::min(settings_.steps, max_depth);
  for (std::size_t step = 0; step < steps; ++step) {
    const std::vector<const void*>* inputs = nullptr;
    {
      const Timed timed(timing, Phase::kFeeds);
      inputs = &feeds_.step(embedding.data(), hidden.data());
    }
    {
      const Timed timed(timing, Phase::kHeadStep);
      graph_.run(*inputs, outputs_.pointers());
    }
    const Token token = add_step(tree, nodes, timing);
    if (step + 1 < steps) {
      const Timed timed(timing, Phase::kTables);
      table_.lookup(token, embedding.data());
      graph_.boundary().outputs[next_hidden_].decode(outputs_.data(next_hidden_), hidden.size(), hidden.data());
    }
  }
  return nodes;
}

Token HeadDrafter::add_step(GrowingTree& tree, HeadNodes& nodes, Timing& timing) {
  const std::size_t depth = nodes.chain.size() + 1;
  const std::size_t count = depth <= settings_.sibling_depth ? settings_.width : 1;
  std::size_t wanted = std::max(count, settings_.width);
  if (settings_.guesses) {
    wanted = std::max(wanted, settings_.guesses->runners_up);
  }
  Token token = 0;
  std::vector<Candidate> candidates;
  {
    const Timed timed(timing, Phase::kTopk);
    const CodeRow logits = outputs_.logits(0);
    token = scorer_.likeliest(logits);
    candidates = scorer_.best(logits, wanted);
  }
  const Timed timed(timing, Phase::kTree);
  const Node parent = nodes.chain.empty() ? kRoot : nodes.chain.back();
  std::size_t siblings = 0;
  for (std::size_t i = 0; i < std::min(count, candidates.size()); ++i) {
    // a temperature can make the two best logits equal: the chain is what the head went on with
    if (candidates[i].token != token && siblings + 1 < count) {
      nodes.siblings.push_back(tree.add(parent, candidates[i].token, candidates[i].log_probability, Source::kMtp));
      ++siblings;
    }
  }
  nodes.chain.push_back(tree.add(parent, token, candidates.front().log_probability, Source::kMtp));
  nodes.candidates.push_back(std::move(candidates));
  return token;
}

}  // namespace hyco
