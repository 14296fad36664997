#include "tables.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "errors.h"

namespace hyco {

namespace {

void check_kind(const SafetensorsFile& file, const char* kind) {
  if (file.metadata("kind") != kind || file.metadata("schema_version") != "1") {
    throw RunnerError(file.path() + " is no " + kind + " of schema 1, but \"" + file.metadata("kind") +
                      "\" of schema \"" + file.metadata("schema_version") + "\"; export it again");
  }
}

double number(const SafetensorsFile& file, const char* name) {
  const std::string text = file.metadata(name);
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !std::isfinite(value) || !(value > 0)) {
    throw RunnerError(file.path() + ": " + name + " is \"" + text + "\", not a number above 0; export it again");
  }
  return value;
}

float float_at(const std::uint8_t* data, std::size_t index) {
  float value = 0.0F;
  std::memcpy(&value, data + index * sizeof(float), sizeof(float));
  return value;
}

// Offset codes of `bits` bits, the first in the low bits (quant/packing.py, pack_offset).
void unpack(const std::uint8_t* packed, unsigned bits, std::size_t count, float* codes) {
  const unsigned per_byte = 8 / bits;
  const unsigned mask = (1U << bits) - 1;
  const int offset = 1 << (bits - 1);
  std::size_t at = 0;
  for (std::size_t byte = 0; at < count; ++byte) {
    for (unsigned place = 0; place < per_byte && at < count; ++place, ++at) {
      codes[at] = static_cast<float>(static_cast<int>((packed[byte] >> (place * bits)) & mask) - offset);
    }
  }
}

// Replaces every packed code by its entry, two at a time: a pair is one 32-bit number, the first code low.
template <unsigned bits>
void spread(const std::uint8_t* packed, std::size_t bytes, const std::uint16_t* entries, std::uint16_t* codes) {
  constexpr std::size_t kValues = std::size_t{1} << bits;
  std::array<std::uint32_t, kValues * kValues> pairs;
  for (std::size_t second = 0; second < kValues; ++second) {
    for (std::size_t first = 0; first < kValues; ++first) {
      pairs[second * kValues + first] = entries[first] | static_cast<std::uint32_t>(entries[second]) << 16U;
    }
  }
  for (std::size_t byte = 0; byte < bytes; ++byte) {
    for (unsigned place = 0; place < 8; place += 2 * bits, codes += 2) {
      std::memcpy(codes, &pairs[(packed[byte] >> place) & (pairs.size() - 1)], sizeof(pairs[0]));
    }
  }
}

void widen(const std::uint8_t* codes, std::size_t count, float* values) {
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(static_cast<std::int8_t>(codes[i]));
  }
}

}  // namespace

PackedTable::PackedTable(const std::string& path) : file_(path) {
  check_kind(file_, "packed_table");
  bits_ = static_cast<unsigned>(number(file_, "bits"));
  width_ = static_cast<std::size_t>(number(file_, "width"));
  factor_ = static_cast<float>(number(file_, "factor"));
  if (bits_ != 2 && bits_ != 4 && bits_ != 8) {
    throw RunnerError(path + ": bits are " + std::to_string(bits_) + "; 2, 4 and 8 are supported");
  }
  const TensorView& codes = file_.tensor("codes", bits_ == 8 ? "I8" : "U8", 2);
  const TensorView& scale = file_.tensor("scale", "F32", 2);
  rows_ = codes.shape[0];
  row_bytes_ = codes.shape[1];
  groups_ = scale.shape[1];
  if (rows_ == 0 || row_bytes_ != (width_ * bits_ + 7) / 8 || scale.shape[0] != rows_ || groups_ == 0 ||
      width_ % groups_ != 0) {
    throw RunnerError(path + ": " + std::to_string(rows_) + " rows of " + std::to_string(row_bytes_) + " bytes, " +
                      std::to_string(scale.shape[0]) + " of " + std::to_string(groups_) +
                      " scales do not agree with a width of " + std::to_string(width_) + "; export it again");
  }
  codes_ = codes.data;
  scale_ = scale.data;
}

std::size_t PackedTable::row_of(Token id) const {
  if (id < 0 || static_cast<std::size_t>(id) >= rows_) {
    throw RunnerError("token id " + std::to_string(id) + " is not in the table, whose ids are 0.." +
                      std::to_string(rows_ - 1));
  }
  return static_cast<std::size_t>(id);
}

float PackedTable::scale_of(std::size_t row, std::size_t group) const {
  const float scale = float_at(scale_, row * groups_ + group);
  if (!std::isfinite(scale)) {
    throw RunnerError("scale of token id " + std::to_string(row) + " is not finite; the table is damaged");
  }
  return scale;
}

void PackedTable::lookup(Token id, float* values) const {
  const std::size_t row = row_of(id);
  if (bits_ == 8) {
    widen(codes_ + row * row_bytes_, width_, values);
  } else {
    unpack(codes_ + row * row_bytes_, bits_, width_, values);
  }
  const std::size_t size = width_ / groups_;
  for (std::size_t group = 0; group < groups_; ++group) {
    const float scale = scale_of(row, group);
    for (std::size_t i = group * size; i < (group + 1) * size; ++i) {
      values[i] = values[i] * scale * factor_;
    }
  }
}

void PackedTable::encode(Token id, const BoundaryTensor& tensor, std::uint8_t* codes) const {
  const std::size_t row = row_of(id);
  const std::size_t size = width_ / groups_;
  if (bits_ == 8 || size_bytes(tensor.type) != sizeof(std::uint16_t) || size % (8 / bits_) != 0) {
    std::vector<float> values(width_);
    lookup(id, values.data());
    tensor.encode(values.data(), width_, codes);
    return;
  }
  const std::size_t count = std::size_t{1} << bits_;
  std::vector<float> values(groups_ * count);
  for (std::size_t group = 0; group < groups_; ++group) {
    const float scale = scale_of(row, group);
    for (std::size_t code = 0; code < count; ++code) {
      values[group * count + code] = (static_cast<float>(code) - static_cast<float>(count / 2)) * scale * factor_;
    }
  }
  std::vector<std::uint16_t> encoded(values.size());
  tensor.encode(values.data(), values.size(), encoded.data());
  const std::uint8_t* packed = codes_ + row * row_bytes_;
  auto* typed = reinterpret_cast<std::uint16_t*>(codes);
  const std::size_t bytes = size * bits_ / 8;
  for (std::size_t group = 0; group < groups_; ++group) {
    const std::uint16_t* entries = encoded.data() + group * count;
    if (bits_ == 4) {
      spread<4>(packed + group * bytes, bytes, entries, typed + group * size);
    } else {
      spread<2>(packed + group * bytes, bytes, entries, typed + group * size);
    }
  }
}

EmbeddingTable::EmbeddingTable(const std::string& path) : file_(path) {
  check_kind(file_, "embedding_table");
  const TensorView& codes = file_.tensor("codes", "I8", 2);
  const TensorView& scale = file_.tensor("scale", "F32", 1);
  const TensorView& ids = file_.tensor("token_ids", "I64", 1);
  token_ids_ = elements<Token>(ids);
  width_ = codes.shape[1];
  if (token_ids_.empty() || codes.shape[0] != token_ids_.size() || scale.shape[0] != token_ids_.size()) {
    throw RunnerError(path + ": the table has " + std::to_string(token_ids_.size()) + " ids, " +
                      std::to_string(codes.shape[0]) + " rows and " + std::to_string(scale.shape[0]) +
                      " scales; export it again");
  }
  if (token_ids_.front() < 0 ||
      std::adjacent_find(token_ids_.begin(), token_ids_.end(), std::greater_equal<>()) != token_ids_.end()) {
    throw RunnerError(path + ": the table's token ids must start at 0 or above and rise without repetition");
  }
  codes_ = codes.data;
  scale_ = scale.data;
}

void EmbeddingTable::lookup(Token token, float* values) const {
  const auto found = std::lower_bound(token_ids_.begin(), token_ids_.end(), token);
  if (found == token_ids_.end() || *found != token) {
    throw RunnerError("token id " + std::to_string(token) + " is not among the " + std::to_string(token_ids_.size()) +
                      " ids of the embedding table; only kept tokens can be looked up");
  }
  const auto row = static_cast<std::size_t>(found - token_ids_.begin());
  widen(codes_ + row * width_, width_, values);
  const float scale = float_at(scale_, row);
  for (std::size_t i = 0; i < width_; ++i) {
    values[i] *= scale;
  }
}

}  // namespace hyco
