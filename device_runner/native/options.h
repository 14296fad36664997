// The command line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "engines.h"

namespace hyco {

extern const char* const kUsage;

// A mode and its options, each given once and known to the mode.
class Arguments {
 public:
  // Throws UsageError for a command line that is none.
  static Arguments parse(int count, char** values);

  const std::string& mode() const { return mode_; }
  // "" where the option was not given.
  const std::string& text(const std::string& option) const;
  // Throws UsageError where the option was not given.
  const std::string& required(const std::string& option) const;
  // Throws UsageError for a text that is not a whole number from 0 to `largest`.
  std::optional<std::size_t> number(const std::string& option, std::size_t largest) const;
  // The options of bench and serve.
  EngineOptions engine() const;

 private:
  std::string mode_;
  std::map<std::string, std::string> values_;
};

}  // namespace hyco
