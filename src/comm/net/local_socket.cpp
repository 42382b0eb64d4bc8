// SPDX-License-Identifier: Apache-2.0
#include "comm/net/local_socket.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace magi::comm {
namespace {

constexpr int kStream = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;

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

LocalSocket::Result LocalSocket::send_descriptor(int descriptor, Deadline deadline) {
  DescriptorMessage message;
  cmsghdr* header = CMSG_FIRSTHDR(&message.header);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  while (sendmsg(fd(), &message.header, MSG_NOSIGNAL) < 0) {
    if (errno == EAGAIN) {
      if (!wait_writable(deadline)) return Result::Timeout;
    } else if (errno != EINTR) {
      return Result::Ended;
    }
  }
  return Result::Done;
}

LocalSocket::Result LocalSocket::receive_descriptor(FileDescriptor& descriptor, Deadline deadline) {
  DescriptorMessage message;
  for (;;) {
    const ssize_t count = recvmsg(fd(), &message.header, MSG_CMSG_CLOEXEC);
    if (count > 0) break;
    if (count == 0) return Result::Ended;
    if (errno == EAGAIN) {
      if (!wait_readable(deadline)) return Result::Timeout;
    } else if (errno != EINTR) {
      return Result::Ended;
    }
  }
  const cmsghdr* header = CMSG_FIRSTHDR(&message.header);
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    int received = -1;
    std::memcpy(&received, CMSG_DATA(header), sizeof(int));
    descriptor = FileDescriptor(received);
  }
  return Result::Done;
}

std::optional<LocalSocket> LocalSocket::listen_at(const std::string& name, int backlog) {
  LocalSocket socket(open_socket());
  const Address address = abstract_address(name);
  if (bind(socket.fd(), reinterpret_cast<const sockaddr*>(&address.data), address.size) != 0) {
    if (errno == EADDRINUSE) return std::nullopt;
    throw_socket("bind a socket");
  }
  if (listen(socket.fd(), backlog) != 0) throw_socket("listen at a socket");
  return socket;
}

std::optional<LocalSocket> LocalSocket::connect_to(const std::string& name) {
  LocalSocket socket(open_socket());
  const Address address = abstract_address(name);
  if (connect(socket.fd(), reinterpret_cast<const sockaddr*>(&address.data), address.size) == 0) {
    return socket;
  }
  // EAGAIN: the backlog is full.
  if (errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR) return std::nullopt;
  throw_socket("connect to a socket");
}

std::optional<LocalSocket> LocalSocket::accept() const {
  auto socket = StreamSocket::accept();
  if (!socket) return std::nullopt;
  return LocalSocket(std::move(*socket));
}

LocalSocket::Peer LocalSocket::peer() const {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (getsockopt(fd(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return {};
  return {.pid = credentials.pid,
          .user = credentials.uid,
          .is_same_user = credentials.uid == geteuid()};
}

}  // namespace magi::comm
