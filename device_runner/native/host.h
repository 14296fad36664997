// The machine that this runs on.
#pragma once

#include <string>

namespace hyco {

// "x86_64-linux", "aarch64-linux" or "arm64-v8a" (Android).
const char* abi_name();

// Lets this process and the threads that it starts run on the CPUs of a hexadecimal mask alone: "f0" is CPUs 4 to 7.
// Throws UsageError for a text that is no such mask, RunnerError where none of them can be had.
void use_cpus(const std::string& mask);

}  // namespace hyco
