// Recorded rounds, drafted on this machine.
//
// The file is a recording (replay.h) without calls. Several texts follow each other: each starts with a "begin" that has
// `text`, its number, and `fresh` true. A "draft" may have `truth`, how the text goes on.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "drafter.h"

namespace hyco {

// Drafts `count` rounds (none: each of the file once) and prints a line for each. Beyond the file's end it starts again.
// A round's reply accepts what this machine's own tree holds of the recorded tokens, so the text stays the recorded one.
// Throws RunnerError for a file that is no such recording, or holds no round.
void bench(LoadedBundles& bundles, const std::string& rounds, std::optional<std::size_t> count);

}  // namespace hyco
