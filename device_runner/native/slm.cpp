#include "slm.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "errors.h"

namespace hyco {

namespace {

std::vector<CacheShape> cache_shapes(const SlmConfig& config, std::size_t draft_rows) {
  std::vector<CacheShape> shapes;
  for (const CacheOwner& owner : config.owners) {
    shapes.push_back({owner.heads, owner.dim, slots_of(config, owner.kind, draft_rows)});
  }
  return shapes;
}

std::size_t place_of(const SlmRowPtr& row) {
  if (!row->place) {
    throw RunnerError("token " + std::to_string(row->token) + " is to be accepted, but its row is not drafted");
  }
  return *row->place;
}

}  // namespace

SlmGraph::SlmGraph(const SlmConfig& config, Graph& graph, std::size_t rows, Phase phase)
    : graph_(graph), phase_(phase), feeds_(config, graph.boundary(), rows), outputs_(graph.boundary()) {
  for (const CacheOwner& owner : config.owners) {
    const std::size_t keys = outputs_.index("new_keys_" + std::to_string(owner.layer));
    const std::size_t values = outputs_.index("new_values_" + std::to_string(owner.layer));
    for (const std::size_t output : {keys, values}) {
      const BoundaryTensor& tensor = graph.boundary().outputs[output];
      if (tensor.bytes() != owner.heads * owner.dim * rows) {
        throw RunnerError("output " + tensor.name + " is not that of 8-bit codes in " + std::to_string(rows) +
                          " rows; graph and configuration are of different exports");
      }
    }
    new_rows_.push_back({outputs_.data(keys), outputs_.data(values)});
  }
}

void SlmGraph::run(const RowTree& tree, const std::vector<Token>& tokens, const SlmTables& tables, KvWindow& window,
                   Timing& timing) {
  const std::vector<const void*>* inputs = nullptr;
  {
    const Timed timed(timing, Phase::kFeeds);
    inputs = &feeds_.feed(tree, tokens, tables, window, timing);
  }
  {
    const Timed timed(timing, phase_);
    graph_.run(*inputs, outputs_.pointers());
  }
  const Timed timed(timing, Phase::kState);
  std::vector<std::size_t> positions = tree.depths();
  positions.erase(positions.begin(), positions.begin() + static_cast<std::ptrdiff_t>(tree.stored));
  for (std::size_t& position : positions) {
    position += window.next_position();
  }
  window.append(new_rows_, feeds_.rows(), positions);
}

SlmRows::SlmRows(const SlmParts& parts, std::vector<Token> token_ids, const RoundSettings& settings)
    : tables_(parts.tables),
      draft_(parts.config, parts.draft, parts.draft_rows, Phase::kSlmPass),
      prefill_(parts.config, parts.prefill, parts.prefill_rows, Phase::kPrefill),
      scorer_(draft_.outputs().chunks(), std::move(token_ids), parts.config.softcap, settings.slm_score),
      children_(settings.children),
      window_(cache_shapes(parts.config, parts.draft_rows), parts.config.window) {}

std::size_t SlmRows::room(std::size_t nodes) const {
  const std::size_t front = waiting_.empty() ? 0 : waiting_.size() - 1;
  const std::size_t taken = nodes + (front + nodes <= rows_a_pass() ? front : 0);
  return taken < rows_a_pass() ? rows_a_pass() - taken : 0;
}

void SlmRows::extend(const std::vector<Token>& tokens, Timing& timing) {
  accept(front_, {});
  waiting_.insert(waiting_.end(), tokens.begin(), tokens.end());
  catch_up(timing);
}

SlmTree SlmRows::plant() const {
  if (waiting_.empty()) {
    throw RunnerError("a draft has no reply yet, or no text was begun; commit a reply before the next draft");
  }
  return {GrowingTree(waiting_.back()), {}, {}};
}

std::vector<std::vector<Candidate>> SlmRows::expand(SlmTree& grown, const std::vector<Node>& nodes, Timing& timing) {
  const bool with_root = std::find(nodes.begin(), nodes.end(), kRoot) != nodes.end();
  if (with_root && waiting_.size() - 1 + nodes.size() > rows_a_pass()) {
    catch_up(timing);
  }
  const std::vector<SlmRowPtr> front = with_root ? front_rows() : std::vector<SlmRowPtr>();
  std::vector<SlmRowPtr> rows = front;
  const std::vector<SlmRowPtr> of_nodes = node_rows(grown, nodes, front.empty() ? nullptr : front.back());
  rows.insert(rows.end(), of_nodes.begin(), of_nodes.end());
  run(rows, timing);
  const Timed timed(timing, Phase::kTopk);
  std::vector<std::vector<Candidate>> candidates;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    candidates.push_back(scorer_.best(draft_.outputs().logits(front.size() + i), children_));
    grown.likeliest[nodes[i]] = candidates.back().front().token;
  }
  if (with_root) {
    front_ = front;
    front_.push_back(grown.rows.at(kRoot));
    waiting_.clear();
  }
  return candidates;
}

void SlmRows::keep(SlmTree& grown, const std::vector<Node>& nodes) {
  std::vector<SlmRowPtr> kept;
  std::set<SlmRowPtr> seen(front_.begin(), front_.end());
  for (const Node node : nodes) {
    const auto found = grown.rows.find(node);
    // as many as a sliding layer can read beside a pass (TreeFeeds)
    if (found != grown.rows.end() && found->second->place && kept.size() < rows_a_pass() + 1 &&
        seen.insert(found->second).second) {
      kept.push_back(found->second);
    }
  }
  const std::vector<SlmRowPtr> front = front_;
  accept(front, kept);
  const std::set<SlmRowPtr> staying(kept.begin(), kept.end());
  for (auto row = grown.rows.begin(); row != grown.rows.end();) {
    const bool stays = !row->second->place || staying.count(row->second) > 0;
    row = stays ? std::next(row) : grown.rows.erase(row);
  }
}

void SlmRows::commit(const std::vector<Token>& emitted, const SlmTree* grown, const std::vector<Node>& path) {
  std::vector<SlmRowPtr> rows = front_;
  std::size_t run = 0;
  for (const Node node : path) {
    const auto found = grown == nullptr ? std::map<Node, SlmRowPtr>::const_iterator() : grown->rows.find(node);
    if (grown == nullptr || found == grown->rows.end()) {
      break;
    }
    rows.push_back(found->second);
    ++run;
  }
  if (run > emitted.size()) {
    throw RunnerError("a reply accepts " + std::to_string(run) + " rows, but emits " + std::to_string(emitted.size()) +
                      " tokens");
  }
  accept(rows, {});
  waiting_.insert(waiting_.end(), emitted.begin() + static_cast<std::ptrdiff_t>(run), emitted.end());
}

void SlmRows::run(const std::vector<SlmRowPtr>& rows, Timing& timing) {
  RowTree tree;
  tree.stored = drafted_.size();
  std::vector<Token> tokens;
  for (const SlmRowPtr& row : rows) {
    row->place = drafted_.size();
    drafted_.push_back(row);
    tokens.push_back(row->token);
  }
  for (const SlmRowPtr& row : drafted_) {
    tree.parents.push_back(row->parent ? row->parent->place : std::nullopt);
  }
  draft_.run(tree, tokens, tables_, window_, timing);
}

std::vector<SlmRowPtr> SlmRows::front_rows() const {
  std::vector<SlmRowPtr> rows;
  for (std::size_t i = 0; i + 1 < waiting_.size(); ++i) {
    rows.push_back(std::make_shared<SlmRow>(SlmRow{waiting_[i], rows.empty() ? nullptr : rows.back(), std::nullopt}));
  }
  return rows;
}

std::vector<SlmRowPtr> SlmRows::node_rows(SlmTree& grown, const std::vector<Node>& nodes,
                                          const SlmRowPtr& behind) const {
  std::vector<SlmRowPtr> rows;
  for (const Node node : nodes) {
    SlmRowPtr parent = behind;
    if (const std::optional<Node> at = grown.tree.parent(node)) {
      const auto found = grown.rows.find(*at);
      if (found == grown.rows.end()) {
        throw RunnerError("node " + std::to_string(node) + " cannot be run: its parent " + std::to_string(*at) +
                          " has no row");
      }
      parent = found->second;
    }
    rows.push_back(std::make_shared<SlmRow>(SlmRow{grown.tree.token(node), std::move(parent), std::nullopt}));
    grown.rows[node] = rows.back();
  }
  return rows;
}

void SlmRows::catch_up(Timing& timing) {
  const std::size_t count = waiting_.empty() ? 0 : waiting_.size() - 1;
  for (std::size_t start = 0; start < count; start += prefill_.rows()) {
    const std::size_t stop = std::min(count, start + prefill_.rows());
    RowTree chain;
    std::vector<std::size_t> kept;
    for (std::size_t row = 0; row < stop - start; ++row) {
      chain.parents.push_back(row > 0 ? std::optional<std::size_t>(row - 1) : std::nullopt);
      kept.push_back(row);
    }
    const std::vector<Token> tokens(waiting_.begin() + static_cast<std::ptrdiff_t>(start),
                                    waiting_.begin() + static_cast<std::ptrdiff_t>(stop));
    prefill_.run(chain, tokens, tables_, window_, timing);
    const Timed timed(timing, Phase::kState);
    window_.accept(kept);
  }
  waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(count));
}

void SlmRows::accept(const std::vector<SlmRowPtr>& rows, const std::vector<SlmRowPtr>& still_drafted) {
  const std::set<SlmRowPtr> staying(still_drafted.begin(), still_drafted.end());
  std::vector<std::size_t> kept;
  for (const SlmRowPtr& row : rows) {
    kept.push_back(place_of(row));
  }
  std::vector<std::size_t> places;
  std::vector<SlmRowPtr> remaining;
  for (std::size_t place = 0; place < drafted_.size(); ++place) {
    if (staying.count(drafted_[place]) > 0) {
      places.push_back(place);
      remaining.push_back(drafted_[place]);
    }
  }
  window_.accept(kept, places);
  for (const SlmRowPtr& row : rows) {
    // text follows text: without this every row would hold on to all before it
    row->place.reset();
    row->parent.reset();
  }
  drafted_ = std::move(remaining);
  for (std::size_t place = 0; place < drafted_.size(); ++place) {
    drafted_[place]->place = place;
  }
  front_.clear();
}

}  // namespace hyco
