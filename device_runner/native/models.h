// What the CPU must know of the two drafters: dimensions, windows and RoPE, as a bundle's manifest records them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace hyco {

// Kinds of attention layers; the names are those in the graphs' inputs ("mask_sliding").
enum class Kind : std::uint8_t { kSliding, kFull };
inline constexpr std::array<const char*, 2> kKindNames = {"sliding", "full"};

struct RopeSpec {
  float theta = 10000.0F;
  bool proportional = false;
  double partial_rotary_factor = 1.0;
};

// Layers of one kind; absent where a model has none.
struct KindShape {
  std::size_t heads = 0;
  std::size_t dim = 0;
  RopeSpec rope;
};
using KindShapes = std::array<std::optional<KindShape>, kKindNames.size()>;

struct HeadConfig {
  std::size_t backbone = 0;
  std::size_t sliding_window = 0;
  std::size_t window = 0;
  // The query has the position of the last verified row instead of the bonus token's own (rule "p-1").
  bool position_before = false;
  KindShapes kinds;
};

// A layer that owns a cache of keys and values.
struct CacheOwner {
  std::size_t layer = 0;
  Kind kind = Kind::kSliding;
  std::size_t heads = 0;
  std::size_t dim = 0;
};

struct SlmConfig {
  std::size_t hidden = 0;
  std::size_t sliding_window = 0;
  std::size_t window = 0;
  std::optional<double> softcap;
  KindShapes kinds;
  std::vector<CacheOwner> owners;  // by layer, rising
};

}  // namespace hyco
