#include "tree.h"

#include <algorithm>
#include <functional>

#include "errors.h"

namespace hyco {

namespace {

double best_edge(const std::array<std::optional<double>, kSourceNames.size()>& edges) {
  std::optional<double> best;
  for (const auto& edge : edges) {
    if (edge && (!best || *edge > *best)) {
      best = edge;
    }
  }
  return best.value_or(0.0);
}

std::string names_of(const std::array<std::optional<double>, kSourceNames.size()>& edges) {
  std::string names;
  for (std::size_t source = 0; source < edges.size(); ++source) {
    if (edges[source]) {
      names += names.empty() ? "" : "+";
      names += kSourceNames[source];
    }
  }
  return names.empty() ? "root" : names;
}

}  // namespace

std::size_t GrowingTree::PlaceHash::operator()(const Place& place) const {
  return std::hash<Token>()(place.token) * 0x9E3779B97F4A7C15ULL + place.parent;
}

GrowingTree::GrowingTree(Token root) : tokens_{root}, parents_{std::nullopt}, depths_{0}, edges_{Edges{}} {}

std::optional<Node> GrowingTree::find(Node parent, Token token) const {
  const auto found = places_.find({parent, token});
  return found == places_.end() ? std::nullopt : std::optional<Node>(found->second);
}

Node GrowingTree::add(Node parent, Token token, double log_probability, Source source) {
  const auto which = static_cast<std::size_t>(source);
  if (!(log_probability <= 0)) {
    throw RunnerError(std::string(kSourceNames[which]) + " gives token " + std::to_string(token) +
                      " the log-probability " + std::to_string(log_probability) + "; it is 0 at most");
  }
  if (parent >= size()) {
    throw RunnerError("a node is added behind node " + std::to_string(parent) + " of " + std::to_string(size()));
  }
  const auto [place, is_new] = places_.try_emplace({parent, token}, size());
  if (is_new) {
    tokens_.push_back(token);
    parents_.emplace_back(parent);
    depths_.push_back(depths_[parent] + 1);
    edges_.emplace_back();
  }
  auto& edge = edges_[place->second][which];
  edge = std::max(log_probability, edge.value_or(log_probability));
  return place->second;
}

std::vector<double> GrowingTree::scores() const {
  std::vector<double> scores(size(), 0.0);
  for (Node node = 1; node < size(); ++node) {
    scores[node] = scores[*parents_[node]] + best_edge(edges_[node]);
  }
  return scores;
}

std::vector<Node> GrowingTree::ranked(std::size_t max_depth) const {
  const std::vector<double> scores = this->scores();
  std::vector<Node> nodes;
  for (Node node = 1; node < size(); ++node) {
    if (depths_[node] <= max_depth) {
      nodes.push_back(node);
    }
  }
  std::sort(nodes.begin(), nodes.end(), [&](Node left, Node right) {
    if (scores[left] != scores[right]) {
      return scores[left] > scores[right];
    }
    return depths_[left] != depths_[right] ? depths_[left] < depths_[right] : left < right;
  });
  return nodes;
}

Trimmed GrowingTree::trim(std::size_t nodes, std::size_t max_depth, const std::vector<Node>& always) const {
  std::vector<bool> kept(size(), false);
  kept[kRoot] = true;
  std::size_t count = 0;
  // `always` is taken parents first, so that a limit below its size still leaves a tree.
  std::vector<Node> order = lineages(always);
  const std::vector<Node> by_rank = ranked(max_depth);
  order.insert(order.end(), by_rank.begin(), by_rank.end());
  for (const Node node : order) {
    if (count >= nodes) {
      break;
    }
    if (!kept[node] && depths_[node] <= max_depth && kept[*parents_[node]]) {
      kept[node] = true;
      ++count;
    }
  }
  std::vector<Node> chosen;
  for (Node node = 0; node < size(); ++node) {
    if (kept[node]) {
      chosen.push_back(node);
    }
  }
  return cut(chosen);
}

std::vector<Node> GrowingTree::lineages(const std::vector<Node>& nodes) const {
  std::vector<Node> all;
  for (Node node : nodes) {
    for (Node at = node; at != kRoot; at = *parents_[at]) {
      all.push_back(at);
    }
  }
  std::sort(all.begin(), all.end(), [&](Node left, Node right) {
    return depths_[left] != depths_[right] ? depths_[left] < depths_[right] : left < right;
  });
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

Trimmed GrowingTree::cut(const std::vector<Node>& nodes) const {
  const std::vector<double> scores = this->scores();
  std::vector<std::size_t> rows(size(), 0);
  Trimmed result;
  for (std::size_t row = 0; row < nodes.size(); ++row) {
    const Node node = nodes[row];
    rows[node] = row;
    result.tree.tokens.push_back(tokens_[node]);
    result.tree.parents.push_back(parents_[node] ? std::optional<std::size_t>(rows[*parents_[node]]) : std::nullopt);
    result.tree.scores.push_back(scores[node]);
    result.tree.sources.push_back(names_of(edges_[node]));
  }
  result.nodes = nodes;
  return result;
}

}  // namespace hyco
