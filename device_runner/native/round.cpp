#include "round.h"

#include <algorithm>
#include <string>
#include <utility>

#include "errors.h"

namespace hyco {

HybridDrafter::HybridDrafter(HeadDrafter head, SlmRows slm, const RoundSettings& settings)
    : head_(std::move(head)), slm_(std::move(slm)), settings_(settings) {
  const std::size_t siblings = (settings_.width - 1) * std::min(settings_.sibling_depth, settings_.steps);
  const std::size_t first = 1 + settings_.steps + siblings;
  if (settings_.width == 0 || first > slm_.rows_a_pass()) {
    throw UsageError("root, chain and siblings are " + std::to_string(first) + " rows, the SLM's draft graph runs " +
                     std::to_string(slm_.rows_a_pass()) + "; take fewer steps or siblings");
  }
  if (settings_.guesses) {
    guesses_.emplace(*settings_.guesses);
  }
}

void HybridDrafter::begin(const std::vector<Token>& tokens, Reply reply) {
  std::vector<Token> all = tokens;
  all.insert(all.end(), reply.emitted.begin(), reply.emitted.end());
  {
    const Timed timed(timing_, Phase::kState);
    head_.extend(all.size(), std::move(reply.update));
  }
  slm_.extend(all, timing_);
  if (guesses_) {
    guesses_->extend(all);
  }
}

DraftTree HybridDrafter::draft(std::size_t max_depth) {
  SlmTree grown = slm_.plant();
  const HeadNodes drafted = head_.add_to(grown.tree, max_depth, timing_);
  const std::vector<Node> always = settings_.keep_chain ? drafted.chain : std::vector<Node>();
  // nodes are added parents first, and so are run in their order
  std::vector<Node> nodes = {kRoot};
  nodes.insert(nodes.end(), drafted.chain.begin(), drafted.chain.end());
  nodes.insert(nodes.end(), drafted.siblings.begin(), drafted.siblings.end());
  std::sort(nodes.begin(), nodes.end());
  if (guesses_) {
    const Timed timed(timing_, Phase::kTree);
    const std::vector<Node> guessed = guesses_->add_to(grown.tree, drafted, slm_.room(nodes.size()), max_depth);
    nodes.insert(nodes.end(), guessed.begin(), guessed.end());
  }
  grow(grown, nodes, max_depth);
  grow_further(grown, max_depth, always);
  const Timed timed(timing_, Phase::kTree);
  Trimmed trimmed = grown.tree.trim(settings_.nodes, max_depth, always);
  sent_.emplace(Sent{std::move(grown), std::move(trimmed.nodes)});
  return std::move(trimmed.tree);
}

void HybridDrafter::commit(Reply reply) {
  const Timed timed(timing_, Phase::kState);
  if (reply.emitted.empty()) {
    throw RunnerError("a reply emits no token; every reply has at least one");
  }
  head_.extend(reply.emitted.size(), std::move(reply.update));
  if (guesses_) {
    guesses_->extend(reply.emitted);
  }
  if (!sent_) {
    slm_.commit(reply.emitted, nullptr, {});
    return;
  }
  // An accepted row that is the text's last token has no keys and values at the verifier: it is the next root.
  std::vector<Node> path;
  const std::size_t committed = std::min(reply.accepted.size(), reply.emitted.size() - 1);
  for (std::size_t i = 0; i < committed; ++i) {
    if (reply.accepted[i] >= sent_->nodes.size()) {
      throw RunnerError("a reply accepts row " + std::to_string(reply.accepted[i]) + " of a tree of " +
                        std::to_string(sent_->nodes.size()));
    }
    path.push_back(sent_->nodes[reply.accepted[i]]);
  }
  slm_.commit(reply.emitted, &sent_->grown, path);
  sent_.reset();
}

Timing HybridDrafter::take_timing() { return std::exchange(timing_, Timing()); }

void HybridDrafter::grow(SlmTree& grown, const std::vector<Node>& nodes, std::size_t max_depth) {
  const std::vector<std::vector<Candidate>> candidates = slm_.expand(grown, nodes, timing_);
  const Timed timed(timing_, Phase::kTree);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (grown.tree.depth(nodes[i]) >= max_depth) {
      continue;
    }
    for (const Candidate& candidate : candidates[i]) {
      grown.tree.add(nodes[i], candidate.token, candidate.log_probability, Source::kSlm);
    }
  }
}

void HybridDrafter::grow_further(SlmTree& grown, std::size_t max_depth, const std::vector<Node>& always) {
  for (std::size_t pass = 1; pass < settings_.passes; ++pass) {
    std::vector<Node> nodes = {kRoot};
    const std::vector<Node> best = this->best(grown, max_depth, always);
    nodes.insert(nodes.end(), best.begin(), best.end());
    {
      const Timed timed(timing_, Phase::kState);
      slm_.keep(grown, nodes);
    }
    std::vector<Node> fresh;
    for (const Node node : best) {
      // a node without row whose parent has one, and whose children the tree has room for
      if (grown.tree.depth(node) < max_depth && grown.likeliest.count(node) == 0 &&
          grown.rows.count(*grown.tree.parent(node)) > 0) {
        fresh.push_back(node);
      }
    }
    if (fresh.empty()) {
      return;
    }
    fresh.resize(std::min({fresh.size(), settings_.beam, slm_.rows_a_pass()}));
    std::sort(fresh.begin(), fresh.end());
    grow(grown, fresh, max_depth);
  }
}

std::vector<Node> HybridDrafter::best(const SlmTree& grown, std::size_t max_depth,
                                      const std::vector<Node>& always) const {
  const std::vector<Node> ranked = grown.tree.ranked(max_depth);
  std::vector<bool> kept(grown.tree.size(), false);
  std::size_t left = settings_.nodes;
  for (const Node node : always) {
    if (grown.tree.depth(node) <= max_depth && left > 0 && !kept[node]) {
      kept[node] = true;
      --left;
    }
  }
  for (const Node node : ranked) {
    if (left > 0 && !kept[node]) {
      kept[node] = true;
      --left;
    }
  }
  std::vector<Node> best;
  std::copy_if(ranked.begin(), ranked.end(), std::back_inserter(best), [&](Node node) { return kept[node]; });
  return best;
}

}  // namespace hyco
