// The draft tree: hyco_npu/decode/tree.py, node for node. Row 0 is the root, the last committed token.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace hyco {

using Node = std::size_t;
using Token = std::int64_t;

inline constexpr Node kRoot = 0;

// In the order of their names, which is the order in which they are written ("mtp+slm").
enum class Source : std::uint8_t { kGuess, kMtp, kSlm };
inline constexpr std::array<const char*, 3> kSourceNames = {"guess", "mtp", "slm"};

struct Candidate {
  Token token;
  double log_probability;
};

// Rows with parents first; the root has none.
struct DraftTree {
  std::vector<Token> tokens;
  std::vector<std::optional<std::size_t>> parents;
  std::vector<double> scores;
  std::vector<std::string> sources;
};

// A tree cut out of a growing one; row i is its node nodes[i].
struct Trimmed {
  DraftTree tree;
  std::vector<Node> nodes;
};

// A tree under construction. An edge has a log-probability from each source that drafted it; the highest counts. A
// node's score is the sum over its path, so a child never ranks above its parent.
class GrowingTree {
 public:
  explicit GrowingTree(Token root);

  std::size_t size() const { return tokens_.size(); }
  Token token(Node node) const { return tokens_.at(node); }
  std::optional<Node> parent(Node node) const { return parents_.at(node); }
  std::size_t depth(Node node) const { return depths_.at(node); }
  std::optional<Node> find(Node parent, Token token) const;

  // The node for `token` behind `parent`, new or merged with the one there. Throws RunnerError for a log-probability
  // that is NaN or above 0, which would lift a child above its parent.
  Node add(Node parent, Token token, double log_probability, Source source);

  // Cumulative log-probability of every node.
  std::vector<double> scores() const;

  // Nodes without the root from best to worst; ties go to the ancestor, then to the older node.
  std::vector<Node> ranked(std::size_t max_depth) const;

  // The best `nodes` nodes no deeper than `max_depth`; those of `always` first, each with its ancestors.
  Trimmed trim(std::size_t nodes, std::size_t max_depth, const std::vector<Node>& always) const;

 private:
  using Edges = std::array<std::optional<double>, kSourceNames.size()>;
  struct Place {
    Node parent;
    Token token;
    bool operator==(const Place& other) const { return parent == other.parent && token == other.token; }
  };
  struct PlaceHash {
    std::size_t operator()(const Place& place) const;
  };

  std::vector<Node> lineages(const std::vector<Node>& nodes) const;
  Trimmed cut(const std::vector<Node>& nodes) const;

  std::vector<Token> tokens_;
  std::vector<std::optional<Node>> parents_;
  std::vector<std::size_t> depths_;
  std::vector<Edges> edges_;
  std::unordered_map<Place, Node, PlaceHash> places_;
};

}  // namespace hyco
