// Embedding tables on the CPU: quant/packed_table.py and quant/table.py, memory-mapped; a row is bit for bit Python's.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "affine.h"
#include "safetensors.h"
#include "tree.h"

namespace hyco {

// Rows of 2-, 4- or 8-bit codes: value = code * scale * factor in float32, rounded after each product.
class PackedTable {
 public:
  // Throws RunnerError naming the file for one of another kind or schema, or whose arrays do not agree.
  explicit PackedTable(const std::string& path);

  std::size_t rows() const { return rows_; }
  std::size_t width() const { return width_; }
  // Writes the row of an id to `values` [width]. Throws RunnerError for an id outside and a scale not finite.
  void lookup(Token id, float* values) const;
  // The same row as codes of a graph's input. A group of 2- or 4-bit codes has few different values: those are encoded.
  void encode(Token id, const BoundaryTensor& tensor, std::uint8_t* codes) const;

 private:
  std::size_t row_of(Token id) const;
  float scale_of(std::size_t row, std::size_t group) const;

  SafetensorsFile file_;
  const std::uint8_t* codes_ = nullptr;
  const std::uint8_t* scale_ = nullptr;
  std::size_t rows_ = 0;
  std::size_t width_ = 0;
  std::size_t row_bytes_ = 0;
  std::size_t groups_ = 0;
  unsigned bits_ = 0;
  float factor_ = 0.0F;
};

// 8-bit rows of the keep set: value = code * scale.
class EmbeddingTable {
 public:
  // Throws RunnerError as PackedTable does.
  explicit EmbeddingTable(const std::string& path);

  std::size_t width() const { return width_; }
  // Writes the row of a token to `values` [width]. Throws RunnerError for a token that the table does not hold.
  void lookup(Token token, float* values) const;

 private:
  SafetensorsFile file_;
  std::vector<Token> token_ids_;
  const std::uint8_t* codes_ = nullptr;
  const std::uint8_t* scale_ = nullptr;
  std::size_t width_ = 0;
};

}  // namespace hyco
