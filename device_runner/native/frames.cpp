#include "frames.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "errors.h"

namespace hyco {

namespace {

constexpr std::size_t kFrameHead = 8;
// A prompt of 128K tokens at the dimensions of the largest head, and more: a longer frame is not one of ours.
constexpr std::uint64_t kLargestFrame = std::uint64_t{4} << 30;
// Memory is taken as the bytes arrive, not as the length claims.
constexpr std::size_t kPiece = std::size_t{1} << 20;

RunnerError failed(const std::string& what) { return RunnerError(what + ": " + std::strerror(errno)); }

// Reads `size` bytes, or fewer where the other side closes the connection.
std::size_t read_up_to(const Socket& socket, std::uint8_t* data, std::size_t size) {
  std::size_t done = 0;
  while (done < size) {
    const ssize_t count = recv(socket.file(), data + done, size - done, 0);
    if (count == 0) {
      break;
    }
    if (count < 0 && errno != EINTR) {
      throw failed("the connection broke");
    }
    done += count > 0 ? static_cast<std::size_t>(count) : 0;
  }
  return done;
}

void write_all(const Socket& socket, const void* data, std::size_t size) {
  const auto* bytes = static_cast<const std::uint8_t*>(data);
  for (std::size_t done = 0; done < size;) {
    const ssize_t count = send(socket.file(), bytes + done, size - done, MSG_NOSIGNAL);
    if (count < 0 && errno != EINTR) {
      throw failed("the answer cannot be sent");
    }
    done += count > 0 ? static_cast<std::size_t>(count) : 0;
  }
}

}  // namespace

Socket::~Socket() {
  if (file_ >= 0) {
    close(file_);
  }
}

Socket::Socket(Socket&& other) noexcept : file_(std::exchange(other.file_, -1)) {}

Listener::Listener(std::uint16_t port) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  if (socket_.file() < 0) {
    throw failed("no socket can be made");
  }
  const int on = 1;
  setsockopt(socket_.file(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  auto* any = reinterpret_cast<sockaddr*>(&address);
  if (bind(socket_.file(), any, sizeof(address)) != 0 || listen(socket_.file(), 1) != 0) {
    throw failed("port " + std::to_string(port) + " of 127.0.0.1 cannot be listened at");
  }
  socklen_t size = sizeof(address);
  if (getsockname(socket_.file(), any, &size) != 0) {
    throw failed("the port that is listened at cannot be found out");
  }
  port_ = ntohs(address.sin_port);
}

Socket Listener::accept(std::chrono::seconds timeout) const {
  pollfd waiting{socket_.file(), POLLIN, 0};
  int ready = 0;
  do {
    ready = poll(&waiting, 1, static_cast<int>(std::chrono::milliseconds(timeout).count()));
  } while (ready < 0 && errno == EINTR);
  if (ready == 0) {
    throw RunnerError("no client came within " + std::to_string(timeout.count()) + " s");
  }
  int file = -1;
  do {
    file = accept4(socket_.file(), nullptr, nullptr, SOCK_CLOEXEC);
  } while (file < 0 && errno == EINTR);
  if (file < 0) {
    throw failed("no client can be accepted");
  }
  Socket client(file);
  const int on = 1;
  setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return client;
}

std::optional<std::vector<std::uint8_t>> read_frame(const Socket& socket) {
  std::array<std::uint8_t, kFrameHead> head{};
  const std::size_t got = read_up_to(socket, head.data(), head.size());
  if (got == 0) {
    return std::nullopt;
  }
  std::uint64_t length = 0;
  for (std::size_t i = kFrameHead; i > 0; --i) {
    length = length << 8 | head[i - 1];
  }
  if (got < head.size() || length > kLargestFrame) {
    throw RunnerError(got < head.size() ? "the connection ended inside the length of a frame"
                                        : "a frame would be " + std::to_string(length) + " bytes long; it is no request");
  }
  std::vector<std::uint8_t> payload;
  while (payload.size() < length) {
    const std::size_t start = payload.size();
    payload.resize(start + std::min<std::size_t>(kPiece, length - start));
    const std::size_t added = read_up_to(socket, payload.data() + start, payload.size() - start);
    if (start + added < payload.size()) {
      throw RunnerError("the connection ended after " + std::to_string(start + added) + " of a frame's " +
                        std::to_string(length) + " bytes");
    }
  }
  return payload;
}

void write_frame(const Socket& socket, const std::string& payload) {
  std::string frame;
  for (std::size_t i = 0; i < kFrameHead; ++i) {
    frame += static_cast<char>(std::uint64_t{payload.size()} >> (8 * i) & 0xFF);
  }
  frame += payload;
  write_all(socket, frame.data(), frame.size());
}

}  // namespace hyco
