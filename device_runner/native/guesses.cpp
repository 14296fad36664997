#include "guesses.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>

namespace hyco {

namespace {

// Log-probability of a guess that the SLM does not confirm: below any that a drafter gives.
constexpr double kUnscored = -100.0;
// What a guess loses, in nats, where the chain's token is moved behind another, and where a text is taken to repeat.
constexpr double kMoved = 0.5;
constexpr double kFollowed = 0.7;

std::vector<Token> path_to(const GrowingTree& tree, Node node) {
  std::vector<Token> tokens;
  for (Node at = node; at != kRoot; at = *tree.parent(at)) {
    tokens.push_back(tree.token(at));
  }
  std::reverse(tokens.begin(), tokens.end());
  return tokens;
}

}  // namespace

void NgramIndex::extend(const std::vector<Token>& tokens) {
  for (const Token token : tokens) {
    const std::size_t place = text_.size();
    for (std::size_t length = shortest_; length <= std::min(longest_, place); ++length) {
      last_place_[{text_.end() - static_cast<std::ptrdiff_t>(length), text_.end()}] = place;
    }
    text_.push_back(token);
  }
}

std::optional<Token> NgramIndex::follower(const std::vector<Token>& path) const {
  std::vector<Token> end(text_.end() - static_cast<std::ptrdiff_t>(std::min(longest_, text_.size())), text_.end());
  end.insert(end.end(), path.begin(), path.end());
  end.erase(end.begin(), end.end() - static_cast<std::ptrdiff_t>(std::min(longest_, end.size())));
  while (end.size() >= shortest_ && !end.empty()) {
    const auto found = last_place_.find(end);
    if (found != last_place_.end()) {
      return text_[found->second];
    }
    end.erase(end.begin());
  }
  return std::nullopt;
}

bool Guesses::Guess::operator>(const Guess& other) const {
  return std::tie(cost, parent, token, next_step) > std::tie(other.cost, other.parent, other.token, other.next_step);
}

std::vector<Node> Guesses::add_to(GrowingTree& tree, const HeadNodes& head, std::size_t room,
                                  std::size_t max_depth) const {
  const std::vector<double> scores = tree.scores();
  std::vector<Guess> guesses;
  for (std::size_t step = 0; step < head.candidates.size(); ++step) {
    const Node parent = step == 0 ? kRoot : head.chain[step - 1];
    const std::size_t count = std::min(runners_up_, head.candidates[step].size());
    for (std::size_t i = 0; i < count; ++i) {
      const Candidate& candidate = head.candidates[step][i];
      guesses.push_back({-scores[parent] - candidate.log_probability, parent, candidate.token, step + 1});
    }
  }
  std::vector<Node> drafted = {kRoot};
  drafted.insert(drafted.end(), head.chain.begin(), head.chain.end());
  drafted.insert(drafted.end(), head.siblings.begin(), head.siblings.end());
  for (const Node node : drafted) {
    add_behind(tree, head, {-scores[node], kRoot, 0, tree.depth(node)}, node, guesses);
  }
  std::priority_queue<Guess, std::vector<Guess>, std::greater<>> heap(std::greater<>(), std::move(guesses));
  std::vector<Node> added;
  while (!heap.empty() && added.size() < room) {
    const Guess best = heap.top();
    heap.pop();
    if (tree.find(best.parent, best.token) || tree.depth(best.parent) + 1 >= max_depth) {
      continue;
    }
    const Node node = tree.add(best.parent, best.token, kUnscored, Source::kGuess);
    added.push_back(node);
    std::vector<Guess> further;
    add_behind(tree, head, best, node, further);
    for (const Guess& guess : further) {
      heap.push(guess);
    }
  }
  return added;
}

void Guesses::add_behind(const GrowingTree& tree, const HeadNodes& head, const Guess& of_node, Node node,
                         std::vector<Guess>& guesses) const {
  const std::size_t step = of_node.next_step;
  if (step < head.chain.size()) {
    const double moved = of_node.cost - head.candidates[step].front().log_probability + kMoved;
    guesses.push_back({moved, node, tree.token(head.chain[step]), step + 1});
  }
  if (const std::optional<Token> token = index_.follower(path_to(tree, node))) {
    guesses.push_back({of_node.cost + kFollowed, node, *token, step + 1});
  }
}

}  // namespace hyco
