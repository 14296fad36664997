// SHA-256 (FIPS 180-4) of a block of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace hyco {

// 64 lower-case hexadecimal digits.
std::string sha256(const std::uint8_t* data, std::size_t size);

}  // namespace hyco
