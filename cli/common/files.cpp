// SPDX-License-Identifier: Apache-2.0
#include "common/files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/check.hpp"
#include "common/values.hpp"

namespace magi::cli {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 30;

/// Whether the machine refuses, and not the call is wrong: whatever is opened, made or written.
bool is_machines(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EROFS:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case EIO:
      return true;
    default:
      return false;
  }
}

std::string reason(int error) { return std::generic_category().message(error); }

/// Throws for a file that cannot be opened, made or written for `error`.
[[noreturn]] void refuse(std::string_view flag, const std::string& path, int error,
                         const char* allowed) {
  if (is_machines(error)) {
    throw EnvironmentUnfit(std::string(flag) + ": " + shown(path) + " failed: " + reason(error));
  }
  throw invalid(flag, shown(path) + " (" + reason(error) + ")", allowed);
}

/// Closes the descriptor it owns.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ > STDERR_FILENO) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

void make_blocking(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_NONBLOCK); }

/// Waits until someone writes to a pipe that is open for reading, but not for long: a writer that
/// has the pipe open may take its time, one that never comes is not waited for.
bool has_writer(int fd, std::string& content) {
  char buffer[1 << 12];
  for (int tries = 0; tries < 100; ++tries) {
    const ssize_t count = ::read(fd, buffer, sizeof buffer);
    if (count > 0) content.assign(buffer, static_cast<std::size_t>(count));
    if (count > 0 || (count < 0 && errno == EAGAIN)) return true;
    ::usleep(10'000);
  }
  return false;
}

/// `content` is what has been read already.
std::string read_all(std::string_view flag, const std::string& path, int fd,
                     std::string content = {}) {
  char buffer[1 << 16];
  for (;;) {
    const ssize_t count = ::read(fd, buffer, sizeof buffer);
    if (count == 0) return content;
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw EnvironmentUnfit("reading " + shown(path) + " failed: " + reason(errno));
    content.append(buffer, static_cast<std::size_t>(count));
    if (content.size() > kMostBytes) {
      throw invalid(flag, shown(path), "a file of at most 1 GiB");
    }
  }
}

void write_all(const std::string& path, int fd, std::string_view content) {
  while (!content.empty()) {
    const ssize_t count = ::write(fd, content.data(), content.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw EnvironmentUnfit("writing " + shown(path) + " failed: " + reason(errno));
    content.remove_prefix(static_cast<std::size_t>(count));
  }
}

/// Keeps a file's readers: who might read it may read the one in its place, and nobody else.
void keep_owner_and_mode(int fd, const struct stat& status) {
  // Only a privileged process may give files away; the owner of others' files is then its own.
  const bool is_owner = ::fchown(fd, status.st_uid, status.st_gid) == 0;
  ::fchmod(fd, status.st_mode & (is_owner ? 07777 : 0700));
}

/// A device or pipe is written as it is: renaming a file onto it would replace it.
void write_in_place(std::string_view flag, const std::string& path, std::string_view content) {
  // A pipe without a reader would block in open() without O_NONBLOCK.
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0 && errno == ENXIO) {
    throw invalid(flag, shown(path) + " (a pipe that nobody reads)", "a path that a file can take");
  }
  if (file.get() < 0) refuse(flag, path, errno, "a path that a file can take");
  make_blocking(file.get());
  write_all(path, file.get(), content);
}

}  // namespace

std::string read_file(std::string_view flag, const std::string& path) {
  if (path == "-") return read_all(flag, "standard input", STDIN_FILENO);
  // A pipe without a writer would block in open() without O_NONBLOCK.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) refuse(flag, path, errno, "a file that can be read");
  struct stat status {};
  const bool is_known = ::fstat(file.get(), &status) == 0;
  std::string begin;
  if (is_known && S_ISFIFO(status.st_mode)) {
    if (!has_writer(file.get(), begin)) {
      throw invalid(flag, shown(path) + " (a pipe that nobody writes)", "a file that can be read");
    }
    make_blocking(file.get());
  } else if (!is_known || !S_ISREG(status.st_mode)) {
    throw invalid(flag, shown(path) + " (not a file or pipe)", "a file that can be read");
  }
  return read_all(flag, path, file.get(), std::move(begin));
}

void write_file(std::string_view flag, const std::string& path, std::string_view content) {
  struct stat status {};
  const bool is_there = ::stat(path.c_str(), &status) == 0;
  if (is_there && !S_ISREG(status.st_mode)) {
    write_in_place(flag, path, content);
    return;
  }
  const std::string partial = path + ".partial-" + std::to_string(::getpid());
  const int fd =
      ::open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, is_there ? 0600 : 0666);
  if (fd < 0) refuse(flag, path, errno, "a path in a folder that can be written");
  const Descriptor file(fd);
  try {
    if (is_there) keep_owner_and_mode(fd, status);
    write_all(path, fd, content);
    if (std::rename(partial.c_str(), path.c_str()) != 0) {
      refuse(flag, path, errno, "a path that a file can take");
    }
  } catch (...) {
    ::unlink(partial.c_str());
    throw;
  }
}

void make_folder(std::string_view flag, const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  constexpr const char* kAllowed = "a folder that exists or can be made";
  if (error) refuse(flag, path, error.value(), kAllowed);
  if (!std::filesystem::is_directory(path, error)) {
    throw invalid(flag, shown(path) + " (not a folder)", kAllowed);
  }
}

}  // namespace magi::cli
