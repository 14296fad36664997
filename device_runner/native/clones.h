// A function compiled a second time for x86 processors with AVX2, chosen when the program starts. Elsewhere nothing:
// on aarch64 NEON is always there.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define HYCO_AVX2_TOO __attribute__((target_clones("default", "avx2")))
#else
#define HYCO_AVX2_TOO
#endif
