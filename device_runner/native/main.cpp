// hyco_runner: one line of JSON for each result, and at the end {"end": true, "exit": code}. A reader that does not see
// the last line knows that the run was cut off; the shell's exit code does not survive every adb.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <limits>
#include <string>

#include "bench.h"
#include "errors.h"
#include "host.h"
#include "lines.h"
#include "manifest.h"
#include "options.h"
#include "replay.h"
#include "serve.h"
#include "version.h"

namespace hyco {

namespace {

constexpr std::size_t kClientTimeout = 60;
constexpr std::size_t kLongestTimeout = 86400;

int info(const Arguments& arguments) {
  const Bundle bundle = open_bundle(arguments.required("bundle"));
  const Manifest& manifest = bundle.manifest;
  print_line(Json::Object{{"bundle", bundle.folder},
                          {"schema_version", manifest.schema_version},
                          {"kind", manifest.kind},
                          {"window", manifest.window},
                          {"position_rule", manifest.position_rule},
                          {"keep_set", Json::Object{{"size", manifest.keep_set.size},
                                                    {"vocab_size", manifest.keep_set.vocab_size},
                                                    {"sha256", manifest.keep_set.sha256}}}});
  for (const GraphEntry& graph : manifest.graphs) {
    Json::Object files;
    for (const auto& [role, path] : graph.files) {
      files[role] = path;
    }
    print_line(Json::Object{{"graph", graph.name},
                            {"rows", graph.rows},
                            {"inputs", graph.boundary.inputs.size()},
                            {"outputs", graph.boundary.outputs.size()},
                            {"files", std::move(files)}});
  }
  for (const TargetEntry& target : manifest.targets) {
    print_line(
        Json::Object{{"target", target.name}, {"compiled", target.compiled}, {"qnn_version", target.qnn_version}});
  }
  std::vector<std::string> problems = file_problems(bundle);
  if (!arguments.text("qnn-version").empty()) {
    const std::vector<std::string> versions = version_problems(bundle, arguments.text("qnn-version"));
    problems.insert(problems.end(), versions.begin(), versions.end());
  }
  if (problems.empty()) {
    read_keep_set(bundle);
  }
  for (const std::string& problem : problems) {
    print_line(Json::Object{{"problem", problem}});
  }
  return problems.empty() ? 0 : 1;
}

Json text_or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

void print_runner(const Arguments& arguments, const EngineOptions& options, const Engines& engines) {
  print_line(Json::Object{{"runner", Json::Object{{"version", kVersion},
                                                  {"provider", provider_name(options.provider)},
                                                  {"ort_version", engines.ort_version()},
                                                  {"abi", abi_name()},
                                                  {"qnn_build", text_or_null(engines.qnn_build())},
                                                  {"cpu_mask", text_or_null(arguments.text("cpu-mask"))},
                                                  {"perf_mode", text_or_null(options.perf_mode)},
                                                  {"threads", options.threads}}}});
}

// Bench or serve: both open the bundles' graphs first.
int draft(const Arguments& arguments) {
  const EngineOptions options = arguments.engine();
  const std::string& mtp = arguments.required("mtp");
  const std::string& slm = arguments.required("slm");
  const bool is_bench = arguments.mode() == "bench";
  const std::string rounds = is_bench ? arguments.required("rounds") : "";
  const auto count = arguments.number("count", std::numeric_limits<std::uint32_t>::max());
  const auto port = arguments.number("port", std::numeric_limits<std::uint16_t>::max());
  const std::size_t timeout = arguments.number("client-timeout", kLongestTimeout).value_or(kClientTimeout);
  if (!arguments.text("cpu-mask").empty()) {
    use_cpus(arguments.text("cpu-mask"));
  }
  Engines engines(options, print_line);
  print_runner(arguments, options, engines);
  LoadedBundles bundles(mtp, slm, [&](const Bundle& bundle, const GraphEntry& entry) {
    return engines.open(bundle, entry);
  });
  if (is_bench) {
    bench(bundles, rounds, count);
  } else {
    serve(bundles, static_cast<std::uint16_t>(port.value_or(0)), std::chrono::seconds(timeout));
  }
  return 0;
}

int run(int count, char** values) {
  const Arguments arguments = Arguments::parse(count, values);
  if (arguments.mode() == "info") {
    return info(arguments);
  }
  if (arguments.mode() == "replay") {
    replay(arguments.required("mtp"), arguments.required("slm"), arguments.required("recording"));
    return 0;
  }
  return draft(arguments);
}

// Prints the last lines; nobody may be there to read them.
int end(int code, const std::string& problem) {
  try {
    if (!problem.empty()) {
      print_line(Json::Object{{"error", problem}});
    }
    print_line(Json::Object{{"end", true}, {"exit", code}});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return code == 0 ? 1 : code;
  }
  return code;
}

}  // namespace

}  // namespace hyco

int main(int count, char** values) {
  // a reader or client that has gone is an error of the call that writes
  std::signal(SIGPIPE, SIG_IGN);
  int code = 0;
  std::string problem;
  try {
    hyco::keep_stdout();
    code = hyco::run(count, values);
  } catch (const hyco::UsageError& error) {
    std::fputs(hyco::kUsage, stderr);
    problem = error.what();
    code = 2;
  } catch (const std::exception& error) {
    problem = error.what();
    code = 1;
  }
  return hyco::end(code, problem);
}
