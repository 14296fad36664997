// hyco_runner: one line of JSON for each result, and at the end {"end": true, "exit": code}. A reader that does not see
// the last line knows that the run was cut off; the shell's exit code does not survive every adb.
#include <getopt.h>

#include <cstdio>
#include <exception>
#include <string>

#include "errors.h"
#include "json.h"
#include "manifest.h"
#include "replay.h"

namespace {

constexpr const char* kUsage =
    "usage: hyco_runner info --bundle DIR [--qnn-version VERSION]\n"
    "       hyco_runner replay --mtp DIR --slm DIR --recording FILE\n";

struct Arguments {
  std::string mode;
  std::string bundle;
  std::string qnn_version;
  std::string mtp;
  std::string slm;
  std::string recording;
};

void print(const hyco::Json& line) { std::printf("%s\n", line.dump().c_str()); }

Arguments parse(int count, char** values) {
  Arguments arguments;
  const option options[] = {{"bundle", required_argument, nullptr, 'b'},
                            {"qnn-version", required_argument, nullptr, 'q'},
                            {"mtp", required_argument, nullptr, 'm'},
                            {"slm", required_argument, nullptr, 's'},
                            {"recording", required_argument, nullptr, 'r'},
                            {nullptr, 0, nullptr, 0}};
  opterr = 0;
  for (int letter = 0; (letter = getopt_long(count, values, "", options, nullptr)) != -1;) {
    switch (letter) {
      case 'b':
        arguments.bundle = optarg;
        break;
      case 'q':
        arguments.qnn_version = optarg;
        break;
      case 'm':
        arguments.mtp = optarg;
        break;
      case 's':
        arguments.slm = optarg;
        break;
      case 'r':
        arguments.recording = optarg;
        break;
      default:
        throw hyco::UsageError("option " + std::string(values[optind - 1]) + " is unknown or lacks its value");
    }
  }
  if (optind + 1 != count) {
    throw hyco::UsageError("one mode is needed: info or replay");
  }
  arguments.mode = values[optind];
  return arguments;
}

const std::string& required(const std::string& value, const char* option) {
  if (value.empty()) {
    throw hyco::UsageError(std::string("option --") + option + " is needed");
  }
  return value;
}

int info(const Arguments& arguments) {
  const hyco::Bundle bundle = hyco::open_bundle(required(arguments.bundle, "bundle"));
  const hyco::Manifest& manifest = bundle.manifest;
  print(hyco::Json::Object{{"bundle", bundle.folder},
                           {"schema_version", manifest.schema_version},
                           {"kind", manifest.kind},
                           {"window", manifest.window},
                           {"position_rule", manifest.position_rule},
                           {"keep_set", hyco::Json::Object{{"size", manifest.keep_set.size},
                                                           {"vocab_size", manifest.keep_set.vocab_size},
                                                           {"sha256", manifest.keep_set.sha256}}}});
  for (const hyco::GraphEntry& graph : manifest.graphs) {
    hyco::Json::Object files;
    for (const auto& [role, path] : graph.files) {
      files[role] = path;
    }
    print(hyco::Json::Object{{"graph", graph.name},
                             {"rows", graph.rows},
                             {"inputs", graph.boundary.inputs.size()},
                             {"outputs", graph.boundary.outputs.size()},
                             {"files", std::move(files)}});
  }
  for (const hyco::TargetEntry& target : manifest.targets) {
    print(hyco::Json::Object{
        {"target", target.name}, {"compiled", target.compiled}, {"qnn_version", target.qnn_version}});
  }
  std::vector<std::string> problems = hyco::file_problems(bundle);
  if (!arguments.qnn_version.empty()) {
    const std::vector<std::string> versions = hyco::version_problems(bundle, arguments.qnn_version);
    problems.insert(problems.end(), versions.begin(), versions.end());
  }
  if (problems.empty()) {
    hyco::read_keep_set(bundle);
  }
  for (const std::string& problem : problems) {
    print(hyco::Json::Object{{"problem", problem}});
  }
  return problems.empty() ? 0 : 1;
}

int run(int count, char** values) {
  const Arguments arguments = parse(count, values);
  if (arguments.mode == "info") {
    return info(arguments);
  }
  if (arguments.mode == "replay") {
    hyco::replay(required(arguments.mtp, "mtp"), required(arguments.slm, "slm"),
                 required(arguments.recording, "recording"));
    return 0;
  }
  throw hyco::UsageError("mode \"" + arguments.mode + "\" is unknown: info or replay");
}

int fail(const std::exception& error, int code) {
  print(hyco::Json::Object{{"error", std::string(error.what())}});
  return code;
}

}  // namespace

int main(int count, char** values) {
  int code = 0;
  try {
    code = run(count, values);
  } catch (const hyco::UsageError& error) {
    std::fputs(kUsage, stderr);
    code = fail(error, 2);
  } catch (const std::exception& error) {
    code = fail(error, 1);
  }
  print(hyco::Json::Object{{"end", true}, {"exit", code}});
  return code;
}
