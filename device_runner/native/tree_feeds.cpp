#include <algorithm>
#include <cstring>

#include "errors.h"
#include "feeds.h"

namespace hyco {

std::vector<std::size_t> RowTree::depths() const {
  std::vector<std::size_t> depths;
  for (const auto& parent : parents) {
    depths.push_back(parent ? depths[*parent] + 1 : 0);
  }
  return depths;
}

std::size_t slots_of(const SlmConfig& config, Kind kind, std::size_t rows) {
  // A sliding layer sees no further than its own window; `rows` more leave room for drafted rows that were stored.
  return kind == Kind::kSliding ? std::min(config.window, config.sliding_window + rows) : config.window;
}

TreeFeeds::TreeFeeds(const SlmConfig& config, const Boundary& boundary, std::size_t rows)
    : config_(config),
      inputs_(boundary),
      rows_(rows),
      embedding_(inputs_.index("embedding")),
      per_layer_(inputs_.index("per_layer")) {
  const auto has = [&](const std::string& name) {
    return std::any_of(boundary.inputs.begin(), boundary.inputs.end(),
                       [&](const BoundaryTensor& tensor) { return tensor.name == name; });
  };
  std::size_t known = 2;
  for (std::size_t kind = 0; kind < config_.kinds.size(); ++kind) {
    const std::string name = kKindNames[kind];
    if (config_.kinds[kind] && has("cos_" + name)) {
      known += add_kind(static_cast<Kind>(kind), *config_.kinds[kind], has("mask_" + name));
    }
  }
  for (std::size_t cache = 0; cache < config_.owners.size(); ++cache) {
    const CacheOwner& owner = config_.owners[cache];
    for (const bool is_keys : {true, false}) {
      const std::string name = (is_keys ? "past_keys_" : "past_values_") + std::to_string(owner.layer);
      if (!has(name)) {
        continue;
      }
      pasts_.push_back({cache, inputs_.index(name), is_keys});
      ++known;
      if (inputs_.tensors()[pasts_.back().input].bytes() != owner.heads * owner.dim * slots(owner.kind)) {
        throw RunnerError("input " + name + " is not that of 8-bit codes in " + std::to_string(slots(owner.kind)) +
                          " slots; graph and configuration are of different exports");
      }
    }
  }
  if (known != boundary.inputs.size()) {
    throw RunnerError("the graph has " + std::to_string(boundary.inputs.size()) + " inputs, of which " +
                      std::to_string(known) + " are known; graph and configuration are of different exports");
  }
}

// Returns how many inputs it has found.
std::size_t TreeFeeds::add_kind(Kind kind, const KindShape& shape, bool with_mask) {
  const std::string name = kKindNames[static_cast<std::size_t>(kind)];
  kinds_.push_back({kind, std::nullopt, inputs_.index("cos_" + name), inputs_.index("sin_" + name), shape.dim,
                    Rotation(shape.rope, shape.dim)});
  if (!with_mask) {
    return 2;
  }
  kinds_.back().mask = inputs_.index("mask_" + name);
  const std::size_t columns = slots(kind) + rows_;
  if (inputs_.tensors()[*kinds_.back().mask].elements() != rows_ * columns) {
    throw RunnerError("input mask_" + name + " is not that of " + std::to_string(rows_) + " rows and " +
                      std::to_string(columns) + " columns; graph and configuration are of different exports");
  }
  return 3;
}

const std::vector<const void*>& TreeFeeds::feed(const RowTree& tree, const std::vector<Token>& tokens,
                                                const SlmTables& tables, const KvWindow& window, Timing& timing) {
  check(tree, tokens, window);
  {
    const Timed timed(timing, Phase::kTables);
    fill_table(embedding_, tables.tokens, tokens);
    fill_table(per_layer_, tables.per_layer, tokens);
  }
  const std::vector<std::size_t> depths = tree.depths();
  // padding is at position 0
  std::vector<std::size_t> positions(rows_, 0);
  for (std::size_t row = 0; row < tree.run(); ++row) {
    positions[row] = window.next_position() + depths[tree.stored + row];
  }
  for (const OfKind& of_kind : kinds_) {
    fill_rotations(of_kind, positions);
    if (of_kind.mask) {
      fill_mask(of_kind.kind, *of_kind.mask, tree, window);
    }
  }
  fill_caches(window);
  return inputs_.pointers();
}

std::size_t TreeFeeds::slots(Kind kind) const { return slots_of(config_, kind, rows_); }

std::size_t TreeFeeds::reach(Kind kind) const {
  return kind == Kind::kSliding ? std::min(config_.window, config_.sliding_window - 1) : config_.window;
}

void TreeFeeds::check(const RowTree& tree, const std::vector<Token>& tokens, const KvWindow& window) const {
  if (tree.stored >= tree.parents.size() || tree.run() > rows_ || tokens.size() != tree.run()) {
    throw RunnerError("the tree runs " + std::to_string(tree.parents.size() - tree.stored) + " rows with " +
                      std::to_string(tokens.size()) + " tokens, the graph has " + std::to_string(rows_));
  }
  if (tree.stored != window.drafted() || window.window() != config_.window) {
    throw RunnerError(std::to_string(tree.stored) + " rows of the tree count as stored, but the window holds a draft of " +
                      std::to_string(window.drafted()));
  }
  const std::size_t size = slots(Kind::kSliding);
  const std::size_t needed = std::min(window.accepted(), config_.sliding_window - 1);
  if (size < config_.window && size < needed + window.drafted()) {
    throw RunnerError("the window holds " + std::to_string(window.drafted()) + " drafted rows; beside " +
                      std::to_string(rows_) + " rows " + std::to_string(rows_ + 1) + " can be read");
  }
}

void TreeFeeds::fill_table(std::size_t input, const PackedTable& table, const std::vector<Token>& tokens) {
  const BoundaryTensor& tensor = inputs_.tensors()[input];
  const std::size_t width = table.width();
  const std::size_t row_bytes = width * size_bytes(tensor.type);
  if (tensor.elements() != rows_ * width) {
    throw RunnerError("input " + tensor.name + " has " + std::to_string(tensor.elements()) + " elements, its table " +
                      std::to_string(width) + " a row");
  }
  std::uint8_t* codes = inputs_.buffer(input);
  for (std::size_t row = 0; row < tokens.size(); ++row) {
    table.encode(tokens[row], tensor, codes + row * row_bytes);
  }
  tensor.fill(0.0F, (rows_ - tokens.size()) * width, codes + tokens.size() * row_bytes);
}

void TreeFeeds::fill_rotations(const OfKind& of_kind, const std::vector<std::size_t>& positions) {
  const std::size_t dim = of_kind.dim;
  scratch_.resize(2 * dim);
  std::array<std::size_t, 2> inputs = {of_kind.cosines, of_kind.sines};
  // the rows of a tree have few different positions
  std::map<std::size_t, std::size_t> first_row;
  for (std::size_t row = 0; row < rows_; ++row) {
    const auto [first, is_new] = first_row.try_emplace(positions[row], row);
    if (is_new) {
      of_kind.rotation.write(positions[row], scratch_.data(), scratch_.data() + dim);
    }
    for (std::size_t part = 0; part < inputs.size(); ++part) {
      const BoundaryTensor& tensor = inputs_.tensors()[inputs[part]];
      const std::size_t row_bytes = dim * size_bytes(tensor.type);
      std::uint8_t* codes = inputs_.buffer(inputs[part]);
      if (is_new) {
        tensor.encode(scratch_.data() + part * dim, dim, codes + row * row_bytes);
      } else {
        std::memcpy(codes + row * row_bytes, codes + first->second * row_bytes, row_bytes);
      }
    }
  }
}

void TreeFeeds::fill_mask(Kind kind, std::size_t input, const RowTree& tree, const KvWindow& window) {
  const BoundaryTensor& tensor = inputs_.tensors()[input];
  std::uint8_t* codes = inputs_.buffer(input);
  if (size_bytes(tensor.type) == 1) {
    fill_mask_codes(kind, tensor, tree, window, codes);
  } else {
    fill_mask_codes(kind, tensor, tree, window, reinterpret_cast<std::uint16_t*>(codes));
  }
}

template <typename Code>
void TreeFeeds::fill_mask_codes(Kind kind, const BoundaryTensor& tensor, const RowTree& tree, const KvWindow& window,
                                Code* codes) const {
  Code seen = 0;
  tensor.fill(0.0F, 1, &seen);
  tensor.fill(kMasked, tensor.elements(), codes);
  const std::size_t size = slots(kind);
  const std::size_t reach = this->reach(kind);
  const std::size_t accepted = window.accepted();
  const std::size_t filled = accepted + window.drafted();
  const std::size_t start = filled > size ? filled - size : 0;
  const std::vector<std::size_t> depths = tree.depths();
  for (std::size_t row = 0; row < rows_; ++row, codes += size + rows_) {
    if (row >= tree.run()) {
      // A row that sees nothing would be an average of everything; padding sees itself, and nobody sees it.
      codes[size + row] = seen;
      continue;
    }
    const std::size_t depth = depths[tree.stored + row];
    // Slot j holds position next - accepted + j, which is depth + accepted - j before this row.
    const std::size_t first = std::max(start, depth + accepted > reach ? depth + accepted - reach : 0);
    for (std::size_t slot = first; slot < accepted; ++slot) {
      codes[slot - start] = seen;
    }
    for (std::optional<std::size_t> at = tree.stored + row; at; at = tree.parents[*at]) {
      const bool visible = depth - depths[*at] <= reach;
      if (visible && *at >= tree.stored) {
        codes[size + *at - tree.stored] = seen;
      } else if (visible && accepted + *at >= start) {
        codes[accepted + *at - start] = seen;
      }
    }
  }
}

void TreeFeeds::fill_caches(const KvWindow& window) {
  const std::size_t filled = window.accepted() + window.drafted();
  for (const Past& past : pasts_) {
    const CacheOwner& owner = config_.owners[past.cache];
    const std::size_t size = slots(owner.kind);
    if (const void* slots = past.is_keys ? window.keys(past.cache, size) : window.values(past.cache, size)) {
      inputs_.point(past.input, slots);
      continue;
    }
    const std::size_t start = filled > size ? filled - size : 0;
    std::uint8_t* codes = inputs_.buffer(past.input);
    if (past.is_keys) {
      window.copy_keys(past.cache, start, size, codes);
    } else {
      window.copy_values(past.cache, start, size, codes);
    }
  }
}

}  // namespace hyco
