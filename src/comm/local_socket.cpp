// SPDX-License-Identifier: Apache-2.0
#include "comm/local_socket.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "comm/shared_region.hpp"
#include "magi/error.hpp"

namespace magi::comm {
namespace {

constexpr int kStream = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;

[[noreturn]] void throw_socket(const std::string& what) {
  throw CommError("cannot " + what + ": " + system_text(errno), CommFailure::System);
}

/// False when the deadline passed first.
bool wait_for(int fd, short events, Deadline deadline) {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() < 0) return false;
    pollfd query{.fd = fd, .events = events, .revents = 0};
    const int limit = static_cast<int>(std::min<std::int64_t>(left.count(), 1000));
    const int ready = poll(&query, 1, limit);
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) throw_socket("wait for a socket");
    if (left.count() == 0) return false;
  }
}

struct Address {
  sockaddr_un data{};
  socklen_t size = 0;
};

/// A leading zero byte makes the name abstract: no file, gone with the socket.
Address abstract_address(const std::string& name) {
  Address address;
  address.data.sun_family = AF_UNIX;
  std::memcpy(address.data.sun_path + 1, name.data(), name.size());
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

/// A message of one byte with room for a file descriptor beside it.
struct DescriptorMessage {
  DescriptorMessage() {
    header.msg_iov = &payload;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
  }
  DescriptorMessage(const DescriptorMessage&) = delete;
  DescriptorMessage& operator=(const DescriptorMessage&) = delete;

  char byte = 0;
  iovec payload{.iov_base = &byte, .iov_len = 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
};

int open_socket() {
  const int fd = socket(AF_UNIX, kStream, 0);
  if (fd < 0) throw_socket("open a socket");
  return fd;
}

}  // namespace

LocalSocket::LocalSocket(LocalSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

LocalSocket& LocalSocket::operator=(LocalSocket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

LocalSocket::~LocalSocket() { close(); }

void LocalSocket::close() noexcept {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

LocalSocket::Result LocalSocket::send_all(std::span<const std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t count = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    } else if (errno == EAGAIN) {
      if (!wait_for(fd_, POLLOUT, deadline)) return Result::Timeout;
    } else if (errno != EINTR) {
      return Result::Ended;
    }
  }
  return Result::Done;
}

LocalSocket::Result LocalSocket::receive_all(std::span<std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t count = recv(fd_, bytes.data(), bytes.size(), 0);
    if (count > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    } else if (count == 0) {
      return Result::Ended;
    } else if (errno == EAGAIN) {
      if (!wait_for(fd_, POLLIN, deadline)) return Result::Timeout;
    } else if (errno != EINTR) {
      return Result::Ended;
    }
  }
  return Result::Done;
}

LocalSocket::Result LocalSocket::send_descriptor(int descriptor, Deadline deadline) {
  DescriptorMessage message;
  cmsghdr* header = CMSG_FIRSTHDR(&message.header);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  while (sendmsg(fd_, &message.header, MSG_NOSIGNAL) < 0) {
    if (errno == EAGAIN) {
      if (!wait_for(fd_, POLLOUT, deadline)) return Result::Timeout;
    } else if (errno != EINTR) {
      return Result::Ended;
    }
  }
  return Result::Done;
}

LocalSocket::Result LocalSocket::receive_descriptor(int& descriptor, Deadline deadline) {
  descriptor = -1;
  DescriptorMessage message;
  for (;;) {
    const ssize_t count = recvmsg(fd_, &message.header, MSG_CMSG_CLOEXEC);
    if (count > 0) break;
    if (count == 0) return Result::Ended;
    if (errno == EAGAIN) {
      if (!wait_for(fd_, POLLIN, deadline)) return Result::Timeout;
    } else if (errno != EINTR) {
      return Result::Ended;
    }
  }
  const cmsghdr* header = CMSG_FIRSTHDR(&message.header);
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    std::memcpy(&descriptor, CMSG_DATA(header), sizeof(int));
  }
  return Result::Done;
}

bool LocalSocket::wait_readable(Deadline deadline) const { return wait_for(fd_, POLLIN, deadline); }

std::optional<LocalSocket> LocalSocket::listen_at(const std::string& name, int backlog) {
  LocalSocket socket(open_socket());
  const Address address = abstract_address(name);
  if (bind(socket.fd_, reinterpret_cast<const sockaddr*>(&address.data), address.size) != 0) {
    if (errno == EADDRINUSE) return std::nullopt;
    throw_socket("bind a socket");
  }
  if (listen(socket.fd_, backlog) != 0) throw_socket("listen at a socket");
  return socket;
}

std::optional<LocalSocket> LocalSocket::connect_to(const std::string& name) {
  LocalSocket socket(open_socket());
  const Address address = abstract_address(name);
  if (connect(socket.fd_, reinterpret_cast<const sockaddr*>(&address.data), address.size) == 0) {
    return socket;
  }
  // EAGAIN: the backlog is full.
  if (errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR) return std::nullopt;
  throw_socket("connect to a socket");
}

std::optional<LocalSocket> LocalSocket::accept() {
  const int fd = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd >= 0) return LocalSocket(fd);
  if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return std::nullopt;
  throw_socket("accept a connection");
}

LocalSocket::Peer LocalSocket::peer() const {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (getsockopt(fd_, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return {};
  return {.pid = credentials.pid, .is_same_user = credentials.uid == geteuid()};
}

}  // namespace magi::comm
