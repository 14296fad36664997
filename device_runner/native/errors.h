// Errors of the native runner. They are C++ exceptions inside the program only: main() turns them into an exit code,
// and none crosses a C interface.
#pragma once

#include <stdexcept>

namespace hyco {

// Something is wrong with a file, a graph or a number: exit 1.
class RunnerError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The command line or a configuration asks for what cannot be: exit 2.
class UsageError : public RunnerError {
 public:
  using RunnerError::RunnerError;
};

}  // namespace hyco
