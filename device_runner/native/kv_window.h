// The host's 8-bit window of keys and values of an SLM: export/kv_window.py over raw bytes (int8 or uint8 codes).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "slot_plane.h"

namespace hyco {

// `recent`: how many of the last slots a graph reads of this cache; where that is less than the window, they are kept a
// second time, so that they need not be copied out for every pass. 0 keeps them once.
struct CacheShape {
  std::size_t heads = 0;
  std::size_t dim = 0;
  std::size_t recent = 0;
};

// A pass's keys [heads, dim, rows] and values [heads, rows, dim] of one cache.
struct NewRows {
  const std::uint8_t* keys = nullptr;
  const std::uint8_t* values = nullptr;
};

// Keys and values of the last `window` accepted tokens and of drafted rows behind them. Rows are appended as a draft;
// `accept` makes some of them text. Every wrong call throws RunnerError and changes nothing.
class KvWindow {
 public:
  KvWindow(std::vector<CacheShape> shapes, std::size_t window);

  std::size_t window() const { return window_; }
  const std::vector<CacheShape>& shapes() const { return shapes_; }
  // Position of the token behind the last accepted one; grows on when the window is full.
  std::size_t next_position() const { return next_position_; }
  std::size_t drafted() const { return positions_.size(); }
  // Accepted tokens that a graph still sees beside the draft.
  std::size_t accepted() const;

  // Adds a pass's first `positions.size()` of `row_count` rows to the draft, one entry of `rows` for each cache.
  void append(const std::vector<NewRows>& rows, std::size_t row_count, const std::vector<std::size_t>& positions);

  // Makes the drafted rows at the rising indices `kept` the next tokens; of the others those at the rising indices
  // `still_drafted` stay drafts. An index counts the drafted rows as they are before the call.
  void accept(const std::vector<std::size_t>& kept, const std::vector<std::size_t>& still_drafted = {});

  // Forgets the draft and all tokens from `position` on.
  void roll_back(std::size_t position);

  // A cache's last `size` slots (all accepted tokens fit: the first) where they lie ready for a graph; null where they
  // must be copied, because of a draft or because this many are not kept.
  const std::uint8_t* keys(std::size_t cache, std::size_t size) const;
  const std::uint8_t* values(std::size_t cache, std::size_t size) const;

  // Copies the `size` slots of a cache from the view's slot `start` on: accepted tokens, then the draft, then zeros.
  void copy_keys(std::size_t cache, std::size_t start, std::size_t size, std::uint8_t* target) const;
  void copy_values(std::size_t cache, std::size_t start, std::size_t size, std::uint8_t* target) const;

 private:
  // Keys and values of the last accepted tokens.
  struct Slots {
    SlotPlane keys;
    SlotPlane values;
  };
  // planes: one of all slots, and one of the recent ones where they are kept. Drafted rows lie one after the other,
  // [row][heads * dim] each.
  struct Cache {
    std::vector<Slots> planes;
    std::vector<std::uint8_t> draft_keys;
    std::vector<std::uint8_t> draft_values;
  };
  // Which slots of a copy come from where.
  struct Parts {
    std::size_t first_slot = 0;
    std::size_t from_slots = 0;
    std::size_t first_draft = 0;
    std::size_t from_draft = 0;
  };

  Parts parts_of(std::size_t start, std::size_t size) const;
  void check_accept(const std::vector<std::size_t>& kept, const std::vector<std::size_t>& still_drafted) const;
  const Slots* ready(std::size_t cache, std::size_t size) const;
  void push(std::size_t cache, const std::vector<std::size_t>& rows);
  void write_slots(Cache& cache, Slots& slots, const CacheShape& shape, const std::size_t* rows, std::size_t count,
                   std::size_t first_slot) const;
  void keep_draft(const std::vector<std::size_t>& indices);

  std::size_t window_;
  std::vector<CacheShape> shapes_;
  std::vector<Cache> caches_;
  std::vector<std::size_t> positions_;
  std::size_t count_ = 0;
  std::size_t next_position_ = 0;
};

}  // namespace hyco
