// Counts how often this program takes memory by `new`.
#pragma once

#include <cstddef>

namespace hyco {

// Turns counting on or off for this thread.
void count_memory(bool on);

// How often memory was taken while counting was on, since the last call; for this thread.
std::size_t memory_taken();

}  // namespace hyco
