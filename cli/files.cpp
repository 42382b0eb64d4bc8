// SPDX-License-Identifier: Apache-2.0
#include "files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/check.hpp"
#include "values.hpp"

namespace magi::cli {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 30;

std::string reason(int error) { return std::generic_category().message(error); }

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

std::string read_all(std::string_view flag, const std::string& path, int fd) {
  std::string content;
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

/// A device or pipe is written as it is: renaming a file onto it would replace it.
void write_in_place(std::string_view flag, const std::string& path, std::string_view content) {
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (file.get() < 0) {
    throw invalid(flag, shown(path) + " (" + reason(errno) + ")", "a path that a file can take");
  }
  write_all(path, file.get(), content);
}

}  // namespace

std::string read_file(std::string_view flag, const std::string& path) {
  if (path == "-") return read_all(flag, "standard input", STDIN_FILENO);
  // A pipe without a writer would block in open() without O_NONBLOCK.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) {
    throw invalid(flag, shown(path) + " (" + reason(errno) + ")", "a file that can be read");
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    throw invalid(flag, shown(path) + " (not a regular file)", "a file that can be read");
  }
  return read_all(flag, path, file.get());
}

void write_file(std::string_view flag, const std::string& path, std::string_view content) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    write_in_place(flag, path, content);
    return;
  }
  const std::string partial = path + ".partial-" + std::to_string(::getpid());
  const int fd = ::open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) {
    const int error = errno;
    if (error == ENOSPC || error == EROFS || error == EMFILE) {
      throw EnvironmentUnfit("writing " + shown(path) + " failed: " + reason(error));
    }
    throw invalid(flag, shown(path) + " (" + reason(error) + ")",
                  "a path in a folder that can be written");
  }
  const Descriptor file(fd);
  try {
    write_all(path, fd, content);
    if (std::rename(partial.c_str(), path.c_str()) != 0) {
      throw invalid(flag, shown(path) + " (" + reason(errno) + ")", "a path that a file can take");
    }
  } catch (...) {
    ::unlink(partial.c_str());
    throw;
  }
}

void make_folder(std::string_view flag, const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error || !std::filesystem::is_directory(path, error)) {
    throw invalid(flag, shown(path) + " (" + (error ? error.message() : "not a folder") + ")",
                  "a folder that exists or can be made");
  }
}

}  // namespace magi::cli
