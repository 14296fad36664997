#include "host.h"

#include <sched.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "errors.h"

namespace hyco {

const char* abi_name() {
#if defined(__ANDROID__) && defined(__aarch64__)
  return "arm64-v8a";
#elif defined(__linux__) && defined(__aarch64__)
  return "aarch64-linux";
#elif defined(__linux__) && defined(__x86_64__)
  return "x86_64-linux";
#else
#error "the runner is built for Linux and Android on x86-64 and AArch64"
#endif
}

void use_cpus(const std::string& mask) {
  const bool is_hex = mask.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos;
  const std::uint64_t bits = !mask.empty() && mask.size() <= 16 && is_hex ? std::stoull(mask, nullptr, 16) : 0;
  if (bits == 0) {
    throw UsageError("--cpu-mask \"" + mask + "\" is not a hexadecimal mask of CPUs such as f0");
  }
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  for (unsigned cpu = 0; cpu < 64; ++cpu) {
    if ((bits >> cpu & 1) != 0) {
      CPU_SET(cpu, &cpus);
    }
  }
  if (sched_setaffinity(0, sizeof(cpus), &cpus) != 0) {
    throw RunnerError("the CPUs of mask " + mask + " cannot be had: " + std::strerror(errno));
  }
}

}  // namespace hyco
