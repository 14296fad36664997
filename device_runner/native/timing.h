// Where a round's time goes, in the phases of hyco_npu/decode/drafters/phases.py and the graphs' own.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace hyco {

// kTree: scoring, merging, cutting. kFeeds: the graphs' inputs. kState: windows of keys and values.
enum class Phase : std::uint8_t { kTree, kFeeds, kState, kHeadGraph, kSlmGraph };
inline constexpr std::array<const char*, 5> kPhaseNames = {"tree", "feeds", "state", "head_graph", "slm_graph"};

class Timing {
 public:
  double milliseconds(Phase phase) const { return milliseconds_[static_cast<std::size_t>(phase)]; }
  void add(Phase phase, double milliseconds) { milliseconds_[static_cast<std::size_t>(phase)] += milliseconds; }

 private:
  std::array<double, kPhaseNames.size()> milliseconds_{};
};

// Books the time from its making to its end.
class Timed {
 public:
  Timed(Timing& timing, Phase phase) : timing_(timing), phase_(phase), start_(Clock::now()) {}
  ~Timed() {
    timing_.add(phase_, std::chrono::duration<double, std::milli>(Clock::now() - start_).count());
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  Timing& timing_;
  Phase phase_;
  Clock::time_point start_;
};

}  // namespace hyco
