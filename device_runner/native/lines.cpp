#include "lines.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "errors.h"

namespace hyco {

namespace {

int lines_file = STDOUT_FILENO;

}  // namespace

void keep_stdout() {
  const int kept = dup(STDOUT_FILENO);
  if (kept < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) {
    throw RunnerError(std::string("stdout cannot be kept apart: ") + std::strerror(errno));
  }
  lines_file = kept;
}

void print_line(const Json& line) {
  const std::string text = line.dump() + "\n";
  for (std::size_t written = 0; written < text.size();) {
    const ssize_t count = write(lines_file, text.data() + written, text.size() - written);
    if (count < 0 && errno != EINTR) {
      throw RunnerError(std::string("results cannot be written: ") + std::strerror(errno));
    }
    written += count > 0 ? static_cast<std::size_t>(count) : 0;
  }
}

}  // namespace hyco
