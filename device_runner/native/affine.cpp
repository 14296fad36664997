#include "affine.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

#include "errors.h"

namespace hyco {

namespace {

// Adding and taking away 1.5 * 2^23 rounds a float below 2^22 half to even, in the default rounding mode, and unlike
// nearbyint it needs no SSE4.1 to be vectorised.
constexpr float kRounder = 12582912.0F;

template <typename Code>
bool encode_as(const BoundaryTensor& tensor, const float* values, std::size_t count, Code* codes) {
  const float scale = tensor.affine.scale;
  const std::int32_t zero_point = tensor.affine.zero_point;
  // Saturating before rounding is the same as after it, because the limits are whole numbers.
  const auto low = static_cast<float>(smallest_code(tensor.type) - zero_point);
  const auto high = static_cast<float>(largest_code(tensor.type) - zero_point);
  std::uint32_t numbers = 1;
  for (std::size_t i = 0; i < count; ++i) {
    const float value = values[i] / scale;
    numbers &= static_cast<std::uint32_t>(value == value);
    float limited = value >= low ? value : low;  // NaN becomes `low`: its conversion would be undefined
    limited = limited <= high ? limited : high;
    const float rounded = (limited + kRounder) - kRounder;
    codes[i] = static_cast<Code>(static_cast<std::int32_t>(rounded) + zero_point);
  }
  return numbers != 0;
}

template <typename Code>
void decode_as(const Affine& affine, const void* codes, std::size_t count, float* values) {
  const auto* typed = static_cast<const Code*>(codes);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = affine.decode(typed[i]);
  }
}

}  // namespace

IntegerType integer_type(const std::string& name) {
  if (name == "int8") return IntegerType::kInt8;
  if (name == "uint8") return IntegerType::kUint8;
  if (name == "int16") return IntegerType::kInt16;
  if (name == "uint16") return IntegerType::kUint16;
  throw RunnerError("type " + name + " is none that a graph's boundary has (int8, uint8, int16, uint16)");
}

std::size_t size_bytes(IntegerType type) {
  return type == IntegerType::kInt8 || type == IntegerType::kUint8 ? 1 : 2;
}

std::int32_t smallest_code(IntegerType type) {
  switch (type) {
    case IntegerType::kInt8:
      return -128;
    case IntegerType::kInt16:
      return -32768;
    default:
      return 0;
  }
}

std::int32_t largest_code(IntegerType type) {
  return smallest_code(type) + (size_bytes(type) == 1 ? 255 : 65535);
}

std::size_t BoundaryTensor::elements() const {
  return std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies<>());
}

void BoundaryTensor::encode(const float* values, std::size_t count, void* codes) const {
  bool numbers = false;
  switch (type) {
    case IntegerType::kInt8:
      numbers = encode_as(*this, values, count, static_cast<std::int8_t*>(codes));
      break;
    case IntegerType::kUint8:
      numbers = encode_as(*this, values, count, static_cast<std::uint8_t*>(codes));
      break;
    case IntegerType::kInt16:
      numbers = encode_as(*this, values, count, static_cast<std::int16_t*>(codes));
      break;
    case IntegerType::kUint16:
      numbers = encode_as(*this, values, count, static_cast<std::uint16_t*>(codes));
      break;
  }
  if (!numbers) {
    throw RunnerError("input " + name + " holds NaN, which has no code; look upstream");
  }
}

void BoundaryTensor::fill(float value, std::size_t count, void* codes) const {
  std::uint16_t code = 0;
  encode(&value, 1, &code);
  if (size_bytes(type) == 1) {
    std::uint8_t first = 0;
    std::memcpy(&first, &code, 1);
    std::memset(codes, first, count);
  } else {
    std::fill_n(static_cast<std::uint16_t*>(codes), count, code);
  }
}

void BoundaryTensor::decode(const void* codes, std::size_t count, float* values) const {
  switch (type) {
    case IntegerType::kInt8:
      return decode_as<std::int8_t>(affine, codes, count, values);
    case IntegerType::kUint8:
      return decode_as<std::uint8_t>(affine, codes, count, values);
    case IntegerType::kInt16:
      return decode_as<std::int16_t>(affine, codes, count, values);
    case IntegerType::kUint16:
      return decode_as<std::uint16_t>(affine, codes, count, values);
  }
}

}  // namespace hyco
