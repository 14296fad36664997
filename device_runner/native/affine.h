// Affine codes of a graph's boundary: value = (code - zero_point) * scale. Arithmetic of quant/affine.py, in float32:
// division by the scale, rounding half to even, saturation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace hyco {

enum class IntegerType : std::uint8_t { kInt8, kUint8, kInt16, kUint16 };

// Throws RunnerError for a name that is none of "int8", "uint8", "int16", "uint16".
IntegerType integer_type(const std::string& name);
std::size_t size_bytes(IntegerType type);
std::int32_t smallest_code(IntegerType type);
std::int32_t largest_code(IntegerType type);

struct Affine {
  float scale = 1.0F;
  std::int32_t zero_point = 0;

  float decode(std::int32_t code) const { return static_cast<float>(code - zero_point) * scale; }
};

// One integer input or output of a graph.
struct BoundaryTensor {
  std::string name;
  IntegerType type = IntegerType::kUint16;
  std::vector<std::size_t> shape;
  Affine affine;

  std::size_t elements() const;
  std::size_t bytes() const { return elements() * size_bytes(type); }

  // Writes `count` codes of `values` to `codes`. Throws RunnerError for NaN, which has no code.
  void encode(const float* values, std::size_t count, void* codes) const;
  // Writes the code of one value `count` times.
  void fill(float value, std::size_t count, void* codes) const;
  // Floats of `count` codes.
  void decode(const void* codes, std::size_t count, float* values) const;
};

struct Boundary {
  std::vector<BoundaryTensor> inputs;
  std::vector<BoundaryTensor> outputs;
};

}  // namespace hyco
