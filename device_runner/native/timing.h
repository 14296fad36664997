// Where a round's time goes.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "json.h"

namespace hyco {

// kTables: rows of the embedding tables. kFeeds: the graphs' other inputs. kTopk: candidates out of logits. kTree:
// merging and cutting. kState: windows of keys and values. The others are runs of graphs alone: the SLM's prefill
// graph, a step of the head, a pass of the SLM's draft graph.
enum class Phase : std::uint8_t { kTables, kFeeds, kTopk, kTree, kState, kPrefill, kHeadStep, kSlmPass, kNone };

class Timing {
 public:
  // Milliseconds by name: the phases, and each step and pass on its own (mtp_step_1, slm_pass_1, ...).
  Json::Object parts() const;

 private:
  friend class Timed;
  using Clock = std::chrono::steady_clock;

  // Books the time since the last call to the phase that was open; `phase` is open now. Returns the one before.
  Phase turn_to(Phase phase);
  void close_graph(Phase phase);

  std::array<double, static_cast<std::size_t>(Phase::kHeadStep)> phases_{};
  std::vector<double> steps_;
  std::vector<double> passes_;
  double graph_ = 0.0;  // of the step or pass that is open
  Phase open_ = Phase::kNone;
  Clock::time_point since_;
};

// Books the time of its life to a phase, without that of others inside it: nothing is counted twice.
class Timed {
 public:
  Timed(Timing& timing, Phase phase) : timing_(timing), phase_(phase), outer_(timing.turn_to(phase)) {}
  ~Timed() {
    timing_.turn_to(outer_);
    timing_.close_graph(phase_);
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  Timing& timing_;
  Phase phase_;
  Phase outer_;
};

}  // namespace hyco
