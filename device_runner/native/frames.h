// Frames over TCP: 8 bytes of length, little-endian, then so many bytes.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace hyco {

// A file descriptor that closes itself.
class Socket {
 public:
  explicit Socket(int file) : file_(file) {}
  ~Socket();
  Socket(Socket&& other) noexcept;
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  Socket& operator=(Socket&&) = delete;

  int file() const { return file_; }

 private:
  int file_;
};

// A socket on 127.0.0.1 alone. Port 0 is any free one. Throws RunnerError where the port is taken.
class Listener {
 public:
  explicit Listener(std::uint16_t port);
  std::uint16_t port() const { return port_; }
  // Waits for a client. Throws RunnerError where none comes within the time.
  Socket accept(std::chrono::seconds timeout) const;

 private:
  Socket socket_;
  std::uint16_t port_ = 0;
};

// The next frame; nothing where the other side has closed the connection behind a whole one. Throws RunnerError where it
// ends inside a frame, and for a length that no request has.
std::optional<std::vector<std::uint8_t>> read_frame(const Socket& socket);

// Throws RunnerError where the other side has closed the connection.
void write_frame(const Socket& socket, const std::string& payload);

}  // namespace hyco
