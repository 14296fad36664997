#include "counted_new.h"

#include <cstdlib>
#include <new>
#include <utility>

namespace {

thread_local bool counting = false;
thread_local std::size_t taken = 0;

}  // namespace

// The other forms of both operators end in these two.
void* operator new(std::size_t size) {
  taken += counting ? 1 : 0;
  if (void* memory = std::malloc(size > 0 ? size : 1)) {
    return memory;
  }
  throw std::bad_alloc();
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*size*/) noexcept { std::free(memory); }

namespace hyco {

void count_memory(bool on) { counting = on; }

std::size_t memory_taken() { return std::exchange(taken, 0); }

}  // namespace hyco
