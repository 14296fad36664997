// Opens a bundle's graphs on an engine: which file, on which provider of ONNX Runtime, with which options.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "drafter.h"
#include "json.h"
#include "manifest.h"
#include "ort_graph.h"

namespace hyco {

// kCpu: the QDQ graphs on ONNX Runtime's CPU provider. kSimulator: the compiled head and draft graph on Qualcomm's x86
// simulator, the prefill graph as kCpu. kHtp: the compiled graphs on a phone's NPU.
enum class Provider { kCpu, kSimulator, kHtp };

struct EngineOptions {
  Provider provider = Provider::kCpu;
  std::string ort;           // libonnxruntime.so
  std::string qnn_provider;  // its QNN plugin
  std::string qnn_backend;   // libQnnHtp.so
  std::optional<std::size_t> soc_model;
  std::optional<std::size_t> htp_arch;
  int threads = 1;
  std::string perf_mode;  // "": QNN's default
  std::string profile;    // "": no profile
};

const char* provider_name(Provider provider);
// Throws UsageError for a name that is none of cpu, simulator and htp.
Provider provider_of(const std::string& name);

class Engines {
 public:
  // Opens ONNX Runtime; `report` takes one JSON object for each graph that is opened later. Throws UsageError for
  // options that contradict each other, RunnerError for libraries that are not what they should be.
  Engines(EngineOptions options, std::function<void(const Json&)> report);

  const std::string& ort_version() const { return runtime_.api().version(); }
  // The build that the QNN library names, as "v2.51.0.260929181845"; "" where it names none or none is used.
  const std::string& qnn_build() const { return qnn_build_; }

  // Checks the graph's files against the manifest and opens it; this must outlive it. Throws RunnerError naming the file
  // that is absent or another, and what ONNX Runtime says.
  std::unique_ptr<Graph> open(const Bundle& bundle, const GraphEntry& entry);

 private:
  struct Choice {
    Provider provider;
    std::string model;  // within the bundle
    std::string data;   // its weights or binary; "" where the model holds them
  };

  Choice choose(const Bundle& bundle, const GraphEntry& entry) const;
  SessionPlan plan(const Bundle& bundle, const GraphEntry& entry, const Choice& choice) const;
  void check_version(const Bundle& bundle) const;
  void verify(const Bundle& bundle, const std::string& file);

  EngineOptions options_;
  std::function<void(const Json&)> report_;
  OrtRuntime runtime_;
  std::string qnn_build_;
  std::set<std::string> verified_;  // paths
};

// The build that a QNN library names; "" where it names none.
std::string qnn_build_of(const std::string& library);

}  // namespace hyco
