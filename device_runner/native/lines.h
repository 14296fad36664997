// Results: one JSON object a line on stdout, and nothing else there.
#pragma once

#include "json.h"

namespace hyco {

// Keeps stdout for `print_line` alone: what libraries print to it goes to stderr (Qualcomm's write to stdout).
void keep_stdout();

// Writes one line at once. Throws RunnerError where nobody reads any more.
void print_line(const Json& line);

}  // namespace hyco
