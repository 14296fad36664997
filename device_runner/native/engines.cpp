#include "engines.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <string_view>
#include <utility>

#include "errors.h"
#include "mapped_file.h"

namespace hyco {

namespace {

constexpr std::array<const char*, 3> kProviderNames = {"cpu", "simulator", "htp"};
constexpr std::array<const char*, 5> kPerfModes = {"burst", "sustained_high_performance", "high_performance", "balanced",
                                                   "default"};

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

// Checked before ONNX Runtime is opened.
EngineOptions checked(EngineOptions options) {
  if (options.ort.empty()) {
    throw UsageError("option --ort is needed: the path of libonnxruntime.so");
  }
  if (options.provider != Provider::kCpu && (options.qnn_provider.empty() || options.qnn_backend.empty())) {
    throw UsageError(std::string("provider ") + provider_name(options.provider) +
                     " needs --qnn-provider and --qnn-backend: the QNN plugin of ONNX Runtime, and libQnnHtp.so");
  }
  // QNN's library for x86-64 is the simulator: times must not carry the NPU's name
#if defined(__x86_64__)
  constexpr Provider kAbsent = Provider::kHtp;
#else
  constexpr Provider kAbsent = Provider::kSimulator;
#endif
  if (options.provider == kAbsent) {
    throw UsageError(std::string("provider ") + provider_name(kAbsent) +
                     " is not to be had here: htp is a phone's NPU, simulator its stand-in on x86-64");
  }
  if (options.provider == Provider::kCpu && (!options.perf_mode.empty() || !options.profile.empty())) {
    throw UsageError("--perf-mode and --profile are QNN's; provider cpu has neither");
  }
  const bool known = std::find(kPerfModes.begin(), kPerfModes.end(), options.perf_mode) != kPerfModes.end();
  if (!options.perf_mode.empty() && !known) {
    throw UsageError("--perf-mode " + options.perf_mode +
                     " is unknown; known are burst, sustained_high_performance, high_performance, balanced and default");
  }
  return options;
}

const TargetEntry& compiled_target(const Bundle& bundle) {
  for (const TargetEntry& target : bundle.manifest.targets) {
    if (target.compiled) {
      return target;
    }
  }
  throw RunnerError("bundle " + bundle.folder +
                    " was compiled for no chip; export it again on a host with the HTP compiler, or take --provider cpu");
}

// Path of a graph's file by role; "" where it has none.
std::string file_of(const GraphEntry& entry, const std::string& role) {
  const auto found = entry.files.find(role);
  return found == entry.files.end() ? "" : found->second;
}

bool shares_binary(const Bundle& bundle, const GraphEntry& entry) {
  const std::string binary = file_of(entry, "binary");
  return !binary.empty() && std::count_if(bundle.manifest.graphs.begin(), bundle.manifest.graphs.end(),
                                          [&](const GraphEntry& one) { return file_of(one, "binary") == binary; }) > 1;
}

bool is_digit(char letter) { return std::isdigit(static_cast<unsigned char>(letter)) != 0; }

// The end of a build's text that starts at `start`: v2.51.0.260929181845, three short numbers and a long one.
std::size_t end_of_build(std::string_view text, std::size_t start) {
  std::size_t at = start + 1;
  for (std::size_t number = 0; number < 4; ++number) {
    const std::size_t first = at;
    while (at < text.size() && is_digit(text[at])) {
      ++at;
    }
    const std::size_t digits = at - first;
    const bool last = number == 3;
    if (digits == 0 || (last ? digits < 6 || digits > 12 : digits > 3 || at == text.size() || text[at++] != '.')) {
      return start;
    }
  }
  return at;
}

}  // namespace

const char* provider_name(Provider provider) { return kProviderNames[static_cast<std::size_t>(provider)]; }

Provider provider_of(const std::string& name) {
  const auto found = std::find(kProviderNames.begin(), kProviderNames.end(), name);
  if (found == kProviderNames.end()) {
    throw UsageError("provider \"" + name + "\" is unknown; known are cpu, simulator and htp");
  }
  return static_cast<Provider>(found - kProviderNames.begin());
}

std::string qnn_build_of(const std::string& library) {
  const MappedFile file(library);
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  for (std::size_t at = text.find('v'); at != std::string_view::npos; at = text.find('v', at + 1)) {
    if (const std::size_t end = end_of_build(text, at); end > at) {
      return std::string(text.substr(at, end - at));
    }
  }
  return "";
}

Engines::Engines(EngineOptions options, std::function<void(const Json&)> report)
    : options_(checked(std::move(options))), report_(std::move(report)), runtime_(options_.ort) {
  if (options_.provider != Provider::kCpu) {
    qnn_build_ = qnn_build_of(options_.qnn_backend);
    runtime_.qnn_device(options_.qnn_provider);
  }
}

std::unique_ptr<Graph> Engines::open(const Bundle& bundle, const GraphEntry& entry) {
  const Choice choice = choose(bundle, entry);
  const auto start = std::chrono::steady_clock::now();
  for (const std::string& file : {choice.model, choice.data}) {
    if (!file.empty()) {
      verify(bundle, file);
    }
  }
  const double verify_ms = milliseconds_since(start);
  const SessionPlan plan = this->plan(bundle, entry, choice);
  const auto opening = std::chrono::steady_clock::now();
  auto graph = std::make_unique<OrtGraph>(runtime_, entry, bundle.path(choice.model), plan);
  report_(Json::Object{{"load", Json::Object{{"graph", entry.name},
                                             {"provider", provider_name(choice.provider)},
                                             {"file", choice.model},
                                             {"milliseconds", milliseconds_since(opening)},
                                             {"verify_ms", verify_ms}}}});
  return graph;
}

Engines::Choice Engines::choose(const Bundle& bundle, const GraphEntry& entry) const {
  // prefill is faster on the CPU than simulated
  const bool is_prefill = bundle.manifest.kind == "slm" && entry.name == bundle.manifest.prefill_graph;
  if (options_.provider == Provider::kCpu || (options_.provider == Provider::kSimulator && is_prefill)) {
    const std::string model = file_of(entry, "qdq");
    if (model.empty()) {
      throw RunnerError("graph " + entry.name + " of bundle " + bundle.folder +
                        " has no QDQ model for the CPU; export it again");
    }
    return {Provider::kCpu, model, file_of(entry, "weights")};
  }
  const bool alone = options_.provider == Provider::kSimulator && !file_of(entry, "simulator_context").empty();
  const std::string prefix = alone ? "simulator_" : "";
  const Choice choice{options_.provider, file_of(entry, prefix + "context"), file_of(entry, prefix + "binary")};
  if (choice.model.empty() || choice.data.empty()) {
    throw RunnerError("graph " + entry.name + " of bundle " + bundle.folder +
                      " is not compiled; export it again on a host with the HTP compiler, or take --provider cpu");
  }
  return choice;
}

SessionPlan Engines::plan(const Bundle& bundle, const GraphEntry& entry, const Choice& choice) const {
  SessionPlan plan;
  plan.threads = options_.threads;
  if (choice.provider == Provider::kCpu) {
    return plan;
  }
  check_version(bundle);
  const TargetEntry& target = compiled_target(bundle);
  plan.qnn_plugin = options_.qnn_provider;
  plan.provider_options = {{"backend_path", ort::absolute_path(options_.qnn_backend)},
                           {"soc_model", std::to_string(options_.soc_model.value_or(target.soc_model))},
                           {"htp_arch", std::to_string(options_.htp_arch.value_or(target.htp_arch))}};
  if (!options_.perf_mode.empty()) {
    plan.provider_options.emplace_back("htp_performance_mode", options_.perf_mode);
  }
  if (!options_.profile.empty()) {
    plan.provider_options.emplace_back("profiling_level", "detailed");
    plan.provider_options.emplace_back("profiling_file_path", options_.profile);
  }
  if (choice.provider == Provider::kHtp && shares_binary(bundle, entry)) {
    plan.entries.emplace_back("ep.share_ep_contexts", "1");
  }
  return plan;
}

void Engines::check_version(const Bundle& bundle) const {
  if (qnn_build_.empty()) {
    throw RunnerError(options_.qnn_backend + " names no QNN build, so it cannot be known whether it runs bundle " +
                      bundle.folder + "; give the path of libQnnHtp.so");
  }
  const std::vector<std::string> problems = version_problems(bundle, qnn_build_);
  if (!problems.empty()) {
    throw RunnerError("bundle " + bundle.folder + ": " + problems.front());
  }
}

void Engines::verify(const Bundle& bundle, const std::string& file) {
  const std::string path = bundle.path(file);
  if (verified_.count(path) > 0) {
    return;
  }
  const auto& files = bundle.manifest.files;
  const auto entry = std::find_if(files.begin(), files.end(), [&](const FileEntry& one) { return one.path == file; });
  if (entry == files.end()) {
    throw RunnerError(path + " is named by a graph, but its manifest does not list it; export the bundle again");
  }
  const std::string problem = file_problem(bundle, *entry);
  if (!problem.empty()) {
    throw RunnerError(path + " is damaged or another's: " + problem + "; copy the bundle again");
  }
  verified_.insert(path);
}

}  // namespace hyco
