#include "timing.h"

#include <string>

namespace hyco {

namespace {

constexpr std::array<const char*, static_cast<std::size_t>(Phase::kHeadStep)> kNames = {"tables", "feeds", "topk",
                                                                                        "tree",   "state", "prefill"};

}  // namespace

Json::Object Timing::parts() const {
  Json::Object parts;
  for (std::size_t phase = 0; phase < kNames.size(); ++phase) {
    parts[kNames[phase]] = phases_[phase];
  }
  for (std::size_t step = 0; step < steps_.size(); ++step) {
    parts["mtp_step_" + std::to_string(step + 1)] = steps_[step];
  }
  for (std::size_t pass = 0; pass < passes_.size(); ++pass) {
    parts["slm_pass_" + std::to_string(pass + 1)] = passes_[pass];
  }
  return parts;
}

Phase Timing::turn_to(Phase phase) {
  const Clock::time_point now = Clock::now();
  if (open_ != Phase::kNone) {
    const auto index = static_cast<std::size_t>(open_);
    double& booked = index < phases_.size() ? phases_[index] : graph_;
    booked += std::chrono::duration<double, std::milli>(now - since_).count();
  }
  since_ = now;
  return std::exchange(open_, phase);
}

void Timing::close_graph(Phase phase) {
  if (phase == Phase::kHeadStep || phase == Phase::kSlmPass) {
    (phase == Phase::kHeadStep ? steps_ : passes_).push_back(std::exchange(graph_, 0.0));
  }
}

}  // namespace hyco
