// The graphs' inputs as integer codes: export/graphs/feeds.py (head) and tree_feeds.py (SLM), then BoundaryTensor.encode.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "affine.h"
#include "kv_window.h"
#include "models.h"
#include "rope.h"
#include "slot_plane.h"
#include "tables.h"
#include "timing.h"

namespace hyco {

// Added to a masked score, as in the graphs' calibration.
inline constexpr float kMasked = -100.0F;

// A buffer for the codes of every input that is written here, and the pointers that a graph takes.
class InputBuffers {
 public:
  explicit InputBuffers(const Boundary& boundary);

  const std::vector<BoundaryTensor>& tensors() const { return *tensors_; }
  // Throws RunnerError where the graph has no such input.
  std::size_t index(const std::string& name) const;
  std::uint8_t* buffer(std::size_t index);
  // Takes codes from elsewhere for this input.
  void point(std::size_t index, const void* codes) { pointers_[index] = codes; }
  const std::vector<const void*>& pointers() const { return pointers_; }

  // Throws RunnerError unless the input has `elements` elements.
  void encode(std::size_t index, const float* values, std::size_t elements);

 private:
  const std::vector<BoundaryTensor>* tensors_;
  std::vector<std::vector<std::uint8_t>> buffers_;
  std::vector<const void*> pointers_;
};

// The verifier's rows that a reply brings, and the newest state. Keys and values [heads, rows, dim] by kind.
struct HeadUpdate {
  std::vector<float> hidden;
  std::vector<float> embedding;
  std::size_t rows = 0;
  std::array<std::vector<float>, kKindNames.size()> keys;
  std::array<std::vector<float>, kKindNames.size()> values;
};

// Inputs of the head's step graph. Rows are encoded once, when they arrive: a code is a function of its value alone.
class HeadFeeds {
 public:
  // `boundary` must outlive this. Throws RunnerError where it is not that of a head of this configuration.
  HeadFeeds(const HeadConfig& config, const Boundary& boundary);

  std::size_t rows() const { return rows_; }
  void extend(const HeadUpdate& update);
  // What all steps of a round share: masks, cosines and sines of the query behind `position` verified rows.
  void begin(std::size_t position);
  // One step's inputs; embedding and hidden [backbone]. Valid until the next call of anything here.
  const std::vector<const void*>& step(const float* embedding, const float* hidden);

 private:
  struct OfKind {
    Kind kind;
    std::size_t keys;
    std::size_t values;
    std::size_t mask;
    std::size_t cosines;
    std::size_t sines;
    SlotPlane key_slots;
    SlotPlane value_slots;
    Rotation rotation;
  };

  void add_kind(Kind kind, const KindShape& shape);
  void store(OfKind& of_kind, const HeadUpdate& update, std::size_t skipped, std::size_t first_slot);

  HeadConfig config_;
  InputBuffers inputs_;
  std::size_t embedding_;
  std::size_t hidden_;
  std::vector<OfKind> kinds_;
  std::size_t rows_ = 0;
};

// The rows of a pass as a tree: the row that each follows, none for the last accepted token. The first `stored` rows
// are drafted rows that the window holds; the others are run.
struct RowTree {
  std::vector<std::optional<std::size_t>> parents;
  std::size_t stored = 0;

  std::size_t run() const { return parents.size() - stored; }
  // How many rows come before each on its path.
  std::vector<std::size_t> depths() const;
};

struct SlmTables {
  PackedTable tokens;
  PackedTable per_layer;
};

// Slots of the window that layers of a kind read in a graph of `rows` rows: the last ones.
std::size_t slots_of(const SlmConfig& config, Kind kind, std::size_t rows);

// Inputs of an SLM's graph of `rows` rows. A graph that lacks some of them (prefill) is not given those.
class TreeFeeds {
 public:
  // `boundary` must outlive this.
  TreeFeeds(const SlmConfig& config, const Boundary& boundary, std::size_t rows);

  std::size_t rows() const { return rows_; }
  // All inputs of a pass; `tokens` are those of the rows that run. Valid until the next call and while the window
  // stays as it is. Throws RunnerError for a tree that graph or window cannot hold and for tokens without a row.
  const std::vector<const void*>& feed(const RowTree& tree, const std::vector<Token>& tokens, const SlmTables& tables,
                                       const KvWindow& window, Timing& timing);

 private:
  // A graph whose last cache is of this kind rotates its keys, but looks at none: it has no mask.
  struct OfKind {
    Kind kind;
    std::optional<std::size_t> mask;
    std::size_t cosines;
    std::size_t sines;
    std::size_t dim;
    Rotation rotation;
  };
  struct Past {
    std::size_t cache;  // place among the owners
    std::size_t input;
    bool is_keys;
  };

  std::size_t slots(Kind kind) const;
  std::size_t reach(Kind kind) const;
  std::size_t add_kind(Kind kind, const KindShape& shape, bool with_mask);
  void check(const RowTree& tree, const std::vector<Token>& tokens, const KvWindow& window) const;
  void fill_table(std::size_t input, const PackedTable& table, const std::vector<Token>& tokens);
  void fill_rotations(const OfKind& of_kind, const std::vector<std::size_t>& positions);
  void fill_mask(Kind kind, std::size_t input, const RowTree& tree, const KvWindow& window);
  template <typename Code>
  void fill_mask_codes(Kind kind, const BoundaryTensor& tensor, const RowTree& tree, const KvWindow& window,
                       Code* codes) const;
  void fill_caches(const KvWindow& window);

  SlmConfig config_;
  InputBuffers inputs_;
  std::size_t rows_;
  std::size_t embedding_;
  std::size_t per_layer_;
  std::vector<OfKind> kinds_;
  std::vector<Past> pasts_;
  std::vector<float> scratch_;
};

}  // namespace hyco
