// Guess rows of the SLM's first pass: hyco_npu/decode/drafters/guesses.py and ngram_index.py.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "head.h"
#include "settings.h"
#include "tree.h"

namespace hyco {

// What followed the last few tokens where the text had them before.
class NgramIndex {
 public:
  NgramIndex(std::size_t longest, std::size_t shortest) : longest_(longest), shortest_(shortest) {}

  void extend(const std::vector<Token>& tokens);
  // The token behind the latest earlier occurrence of the longest suffix of text and `path` that has one.
  std::optional<Token> follower(const std::vector<Token>& path) const;

 private:
  std::size_t longest_;
  std::size_t shortest_;
  std::vector<Token> text_;
  std::map<std::vector<Token>, std::size_t> last_place_;
};

class Guesses {
 public:
  explicit Guesses(const GuessSettings& settings)
      : runners_up_(settings.runners_up), index_(settings.longest, settings.shortest) {}

  void extend(const std::vector<Token>& tokens) { index_.extend(tokens); }
  // Puts at most `room` new nodes into the tree, parents first, none as deep as `max_depth`: they get children.
  std::vector<Node> add_to(GrowingTree& tree, const HeadNodes& head, std::size_t room, std::size_t max_depth) const;

 private:
  struct Guess {
    double cost;
    Node parent;
    Token token;
    std::size_t next_step;  // place in the chain behind the one that the token stands for
    bool operator>(const Guess& other) const;
  };

  void add_behind(const GrowingTree& tree, const HeadNodes& head, const Guess& of_node, Node node,
                  std::vector<Guess>& guesses) const;

  std::size_t runners_up_;
  NgramIndex index_;
};

}  // namespace hyco
