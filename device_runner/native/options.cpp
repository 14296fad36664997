#include "options.h"

#include <getopt.h>

#include <algorithm>
#include <set>
#include <vector>

#include "errors.h"

namespace hyco {

namespace {

using Names = std::set<std::string>;

const Names& engine_options() {
  static const Names names = {"mtp",       "slm",      "provider", "ort",       "qnn-provider", "qnn-backend",
                              "soc-model", "htp-arch", "threads",  "perf-mode", "cpu-mask",     "profile"};
  return names;
}

Names with_engine(std::initializer_list<std::string> more) {
  Names names = engine_options();
  names.insert(more);
  return names;
}

const std::map<std::string, Names>& modes() {
  static const std::map<std::string, Names> known = {{"info", {"bundle", "qnn-version"}},
                                                     {"replay", {"mtp", "slm", "recording"}},
                                                     {"bench", with_engine({"rounds", "count"})},
                                                     {"serve", with_engine({"port", "client-timeout"})}};
  return known;
}

constexpr std::size_t kMostThreads = 256;
constexpr std::size_t kLargestChip = 100000;

}  // namespace

const char* const kUsage =
    "usage: hyco_runner info --bundle DIR [--qnn-version VERSION]\n"
    "       hyco_runner replay --mtp DIR --slm DIR --recording FILE\n"
    "       hyco_runner bench ENGINE --rounds FILE [--count N]\n"
    "       hyco_runner serve ENGINE [--port P] [--client-timeout SECONDS]\n"
    "ENGINE: --mtp DIR --slm DIR --provider cpu|simulator|htp --ort FILE [--qnn-provider FILE --qnn-backend FILE]\n"
    "        [--soc-model N] [--htp-arch N] [--threads N] [--perf-mode MODE] [--cpu-mask HEX] [--profile FILE]\n";

Arguments Arguments::parse(int count, char** values) {
  Names all;
  for (const auto& [mode, names] : modes()) {
    all.insert(names.begin(), names.end());
  }
  std::vector<option> options;
  for (const std::string& name : all) {
    options.push_back({name.c_str(), required_argument, nullptr, 0});
  }
  options.push_back({});
  Arguments arguments;
  opterr = 0;
  int place = 0;
  for (int letter = 0; (letter = getopt_long(count, values, "", options.data(), &place)) != -1;) {
    if (letter != 0) {
      throw UsageError("option " + std::string(values[optind - 1]) + " is unknown or lacks its value");
    }
    const std::string name = options[static_cast<std::size_t>(place)].name;
    if (!arguments.values_.emplace(name, optarg).second) {
      throw UsageError("option --" + name + " is given twice");
    }
  }
  if (optind + 1 != count) {
    throw UsageError("one mode is needed: info, replay, bench or serve");
  }
  arguments.mode_ = values[optind];
  const auto known = modes().find(arguments.mode_);
  if (known == modes().end()) {
    throw UsageError("mode \"" + arguments.mode_ + "\" is unknown: info, replay, bench or serve");
  }
  for (const auto& [name, value] : arguments.values_) {
    if (known->second.count(name) == 0) {
      throw UsageError("mode " + arguments.mode_ + " has no option --" + name);
    }
  }
  return arguments;
}

const std::string& Arguments::text(const std::string& option) const {
  static const std::string none;
  const auto found = values_.find(option);
  return found == values_.end() ? none : found->second;
}

const std::string& Arguments::required(const std::string& option) const {
  const std::string& value = text(option);
  if (value.empty()) {
    throw UsageError("option --" + option + " is needed");
  }
  return value;
}

std::optional<std::size_t> Arguments::number(const std::string& option, std::size_t largest) const {
  if (values_.count(option) == 0) {
    return std::nullopt;
  }
  const std::string& value = text(option);
  const bool digits = !value.empty() && value.size() < 12 && value.find_first_not_of("0123456789") == std::string::npos;
  const std::size_t number = digits ? std::stoull(value) : largest + 1;
  if (number > largest) {
    throw UsageError("--" + option + " " + value + " is not a whole number from 0 to " + std::to_string(largest));
  }
  return number;
}

EngineOptions Arguments::engine() const {
  EngineOptions options;
  options.provider = provider_of(required("provider"));
  options.ort = text("ort");
  options.qnn_provider = text("qnn-provider");
  options.qnn_backend = text("qnn-backend");
  options.soc_model = number("soc-model", kLargestChip);
  options.htp_arch = number("htp-arch", kLargestChip);
  options.threads = static_cast<int>(std::max<std::size_t>(number("threads", kMostThreads).value_or(1), 1));
  options.perf_mode = text("perf-mode");
  options.profile = text("profile");
  return options;
}

}  // namespace hyco
