#include "kv_window.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "errors.h"

namespace hyco {

namespace {

void check_rising(const std::vector<std::size_t>& rows, std::size_t drafted) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] >= drafted) {
      throw RunnerError("row " + std::to_string(rows[i]) + " is to be kept, but " + std::to_string(drafted) +
                        " were drafted, counted from 0");
    }
    if (i > 0 && rows[i] <= rows[i - 1]) {
      throw RunnerError("rows to be kept must rise, as a path through the tree does; " + std::to_string(rows[i]) +
                        " follows " + std::to_string(rows[i - 1]));
    }
  }
}

// Keeps the rows at rising indices. The memory stays, for the next round's rows.
void take(std::vector<std::uint8_t>& rows, std::size_t row_bytes, const std::vector<std::size_t>& indices) {
  for (std::size_t i = 0; i < indices.size(); ++i) {
    std::memmove(rows.data() + i * row_bytes, rows.data() + indices[i] * row_bytes, row_bytes);
  }
  rows.resize(indices.size() * row_bytes);
}

}  // namespace

KvWindow::KvWindow(std::vector<CacheShape> shapes, std::size_t window)
    : window_(window), shapes_(std::move(shapes)) {
  if (window_ == 0) {
    throw RunnerError("a window of 0 tokens holds nothing; give at least 1");
  }
  for (const CacheShape& shape : shapes_) {
    Cache cache;
    cache.planes.push_back({SlotPlane(shape.heads * shape.dim, window_, 1), SlotPlane(shape.heads, window_, shape.dim)});
    if (shape.recent > 0 && shape.recent < window_) {
      cache.planes.push_back(
          {SlotPlane(shape.heads * shape.dim, shape.recent, 1), SlotPlane(shape.heads, shape.recent, shape.dim)});
    }
    caches_.push_back(std::move(cache));
  }
}

std::size_t KvWindow::accepted() const {
  if (drafted() > window_) {
    throw RunnerError("the draft has " + std::to_string(drafted()) + " rows, the window " + std::to_string(window_) +
                      " slots; accept some first");
  }
  return std::min(count_, window_ - drafted());
}

void KvWindow::append(const std::vector<NewRows>& rows, std::size_t row_count,
                      const std::vector<std::size_t>& positions) {
  if (rows.size() != caches_.size() || positions.size() > row_count) {
    throw RunnerError("rows of " + std::to_string(rows.size()) + " caches, " + std::to_string(row_count) +
                      " each, do not fit " + std::to_string(caches_.size()) + " caches and " +
                      std::to_string(positions.size()) + " positions");
  }
  for (const std::size_t position : positions) {
    if (position < next_position_) {
      throw RunnerError("a drafted row is at position " + std::to_string(position) + ", but the text has " +
                        std::to_string(next_position_) + " tokens");
    }
  }
  const std::size_t stored = drafted();
  const std::size_t added = positions.size();
  for (std::size_t index = 0; index < caches_.size(); ++index) {
    const std::size_t heads = shapes_[index].heads;
    const std::size_t dim = shapes_[index].dim;
    Cache& cache = caches_[index];
    cache.draft_keys.resize((stored + added) * heads * dim);
    cache.draft_values.resize((stored + added) * heads * dim);
    std::uint8_t* keys = cache.draft_keys.data() + stored * heads * dim;
    std::uint8_t* values = cache.draft_values.data() + stored * heads * dim;
    for (std::size_t line = 0; line < heads * dim; ++line) {
      const std::uint8_t* source = rows[index].keys + line * row_count;
      for (std::size_t row = 0; row < added; ++row) {
        keys[row * heads * dim + line] = source[row];
      }
    }
    for (std::size_t row = 0; row < added; ++row) {
      for (std::size_t head = 0; head < heads; ++head) {
        std::memcpy(values + (row * heads + head) * dim, rows[index].values + (head * row_count + row) * dim, dim);
      }
    }
  }
  positions_.insert(positions_.end(), positions.begin(), positions.end());
}

void KvWindow::accept(const std::vector<std::size_t>& kept, const std::vector<std::size_t>& still_drafted) {
  check_accept(kept, still_drafted);
  for (std::size_t cache = 0; !kept.empty() && cache < caches_.size(); ++cache) {
    push(cache, kept);
  }
  count_ = std::min(count_ + kept.size(), window_);
  next_position_ += kept.size();
  keep_draft(still_drafted);
}

void KvWindow::roll_back(std::size_t position) {
  const std::size_t first = next_position_ - count_;
  if (position > next_position_ || (first > 0 && position <= first)) {
    throw RunnerError("cannot roll back to position " + std::to_string(position) + ": of " +
                      std::to_string(next_position_) + " tokens the window holds the last " + std::to_string(count_) +
                      "; prefill the text again");
  }
  const std::size_t stay = position - first;
  keep_draft({});
  count_ = stay;
  next_position_ = position;
  for (std::size_t index = 0; index < caches_.size(); ++index) {
    Slots& all = caches_[index].planes.front();
    for (SlotPlane* plane : {&all.keys, &all.values}) {
      for (std::size_t line = 0; line < plane->outer(); ++line) {
        std::memset(plane->at(line, stay), 0, (window_ - stay) * plane->inner_bytes());
      }
    }
    if (caches_[index].planes.size() > 1) {
      Slots& recent = caches_[index].planes.back();
      const std::size_t size = recent.keys.slots();
      const std::size_t start = count_ > size ? count_ - size : 0;
      copy_keys(index, start, size, recent.keys.data());
      copy_values(index, start, size, recent.values.data());
    }
  }
}

const std::uint8_t* KvWindow::keys(std::size_t cache, std::size_t size) const {
  const Slots* slots = ready(cache, size);
  return slots == nullptr ? nullptr : slots->keys.data();
}

const std::uint8_t* KvWindow::values(std::size_t cache, std::size_t size) const {
  const Slots* slots = ready(cache, size);
  return slots == nullptr ? nullptr : slots->values.data();
}

void KvWindow::copy_keys(std::size_t cache, std::size_t start, std::size_t size, std::uint8_t* target) const {
  const Parts parts = parts_of(start, size);
  const Cache& source = caches_.at(cache);
  const SlotPlane& keys = source.planes.front().keys;
  const std::size_t lines = keys.outer();
  for (std::size_t line = 0; line < lines; ++line, target += size) {
    std::memcpy(target, keys.at(line, parts.first_slot), parts.from_slots);
    std::uint8_t* drafted = target + parts.from_slots;
    for (std::size_t row = 0; row < parts.from_draft; ++row) {
      drafted[row] = source.draft_keys[(parts.first_draft + row) * lines + line];
    }
    const std::size_t filled = parts.from_slots + parts.from_draft;
    std::memset(target + filled, 0, size - filled);
  }
}

void KvWindow::copy_values(std::size_t cache, std::size_t start, std::size_t size, std::uint8_t* target) const {
  const Parts parts = parts_of(start, size);
  const Cache& source = caches_.at(cache);
  const std::size_t heads = shapes_[cache].heads;
  const std::size_t dim = shapes_[cache].dim;
  for (std::size_t head = 0; head < heads; ++head, target += size * dim) {
    std::memcpy(target, source.planes.front().values.at(head, parts.first_slot), parts.from_slots * dim);
    for (std::size_t row = 0; row < parts.from_draft; ++row) {
      const std::size_t place = ((parts.first_draft + row) * heads + head) * dim;
      std::memcpy(target + (parts.from_slots + row) * dim, source.draft_values.data() + place, dim);
    }
    const std::size_t filled = parts.from_slots + parts.from_draft;
    std::memset(target + filled * dim, 0, (size - filled) * dim);
  }
}

KvWindow::Parts KvWindow::parts_of(std::size_t start, std::size_t size) const {
  const std::size_t seen = accepted();
  const std::size_t stop = std::min(start + size, seen + drafted());
  Parts parts;
  parts.first_slot = count_ - seen + std::min(start, seen);
  parts.from_slots = std::max(std::min(stop, seen), start) - start;
  parts.first_draft = std::max(start, seen) - seen;
  parts.from_draft = std::max(stop, seen) - seen > parts.first_draft ? stop - seen - parts.first_draft : 0;
  return parts;
}

void KvWindow::check_accept(const std::vector<std::size_t>& kept,
                            const std::vector<std::size_t>& still_drafted) const {
  check_rising(kept, drafted());
  check_rising(still_drafted, drafted());
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (std::find(still_drafted.begin(), still_drafted.end(), kept[i]) != still_drafted.end()) {
      throw RunnerError("row " + std::to_string(kept[i]) + " is to be accepted and to stay a draft; it is one or the other");
    }
    if (positions_[kept[i]] != next_position_ + i) {
      throw RunnerError("a row at position " + std::to_string(positions_[kept[i]]) + " cannot be kept: the next one is " +
                        std::to_string(next_position_ + i));
    }
  }
  for (const std::size_t row : still_drafted) {
    if (positions_[row] < next_position_ + kept.size()) {
      throw RunnerError("a row at position " + std::to_string(positions_[row]) + " cannot stay a draft: the text then has " +
                        std::to_string(next_position_ + kept.size()) + " tokens");
    }
  }
}

const KvWindow::Slots* KvWindow::ready(std::size_t cache, std::size_t size) const {
  for (const Slots& slots : caches_.at(cache).planes) {
    if (drafted() == 0 && slots.keys.slots() == size) {
      return &slots;
    }
  }
  return nullptr;
}

void KvWindow::push(std::size_t cache, const std::vector<std::size_t>& rows) {
  for (Slots& slots : caches_[cache].planes) {
    const std::size_t size = slots.keys.slots();
    const std::size_t held = std::min(count_, size);
    // Where more rows are kept than there are slots, the window is the last of them.
    const std::size_t last = std::min(rows.size(), size);
    const std::size_t stay = std::min(held, size - last);
    // The window is full behind a slide, so all slots that it leaves undefined are written.
    slots.keys.slide(held - stay);
    slots.values.slide(held - stay);
    write_slots(caches_[cache], slots, shapes_[cache], rows.data() + rows.size() - last, last, stay);
  }
}

void KvWindow::write_slots(Cache& cache, Slots& slots, const CacheShape& shape, const std::size_t* rows,
                           std::size_t count, std::size_t first_slot) const {
  const std::size_t row_bytes = shape.heads * shape.dim;
  // line by line: neighbouring slots of a line share a cache line, neighbouring lines do not
  for (std::size_t line = 0; line < row_bytes; ++line) {
    std::uint8_t* target = slots.keys.at(line, first_slot);
    for (std::size_t i = 0; i < count; ++i) {
      target[i] = cache.draft_keys[rows[i] * row_bytes + line];
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t head = 0; head < shape.heads; ++head) {
      const std::uint8_t* values = cache.draft_values.data() + rows[i] * row_bytes + head * shape.dim;
      std::memcpy(slots.values.at(head, first_slot + i), values, shape.dim);
    }
  }
}

void KvWindow::keep_draft(const std::vector<std::size_t>& indices) {
  if (indices.size() == positions_.size()) {
    return;
  }
  for (std::size_t index = 0; index < caches_.size(); ++index) {
    const std::size_t row_bytes = shapes_[index].heads * shapes_[index].dim;
    take(caches_[index].draft_keys, row_bytes, indices);
    take(caches_[index].draft_values, row_bytes, indices);
  }
  std::vector<std::size_t> positions;
  for (const std::size_t row : indices) {
    positions.push_back(positions_[row]);
  }
  positions_ = std::move(positions);
}

}  // namespace hyco
