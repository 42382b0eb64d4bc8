// SPDX-License-Identifier: Apache-2.0
#include "comm/engine/shared_region.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "base/words.hpp"
#include "magi/error.hpp"

namespace magi::comm {
namespace {

[[noreturn]] void throw_system(const std::string& what, int error) {
  throw CommError(what + ": " + system_text(error), CommFailure::System);
}

}  // namespace

std::size_t page_bytes() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

std::shared_ptr<SharedRegion> SharedRegion::create(std::size_t num_bytes) {
  const int fd = memfd_create("magi", MFD_CLOEXEC);
  if (fd < 0) throw_system("cannot create shared memory", errno);
  std::shared_ptr<SharedRegion> region(new SharedRegion(fd));
  if (fchmod(fd, S_IRUSR | S_IWUSR) != 0) throw_system("cannot make shared memory private", errno);
  if (!region->reserve(0, num_bytes)) {
    throw CommError("cannot reserve " + std::to_string(num_bytes) + " bytes of shared memory",
                    CommFailure::System);
  }
  return region;
}

std::shared_ptr<SharedRegion> SharedRegion::open(pid_t pid, int fd) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  const int own = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (own < 0) {
    throw_system("cannot open the shared memory of process " + std::to_string(pid) +
                     " (ranks must be processes of one user on one machine)",
                 errno);
  }
  return std::shared_ptr<SharedRegion>(new SharedRegion(own));
}

SharedRegion::~SharedRegion() {
  for (const auto& [offset, extent] : extents_) munmap(extent.data, extent.num_bytes);
}

std::size_t SharedRegion::file_bytes() const {
  struct stat status {};
  return fstat(fd(), &status) == 0 ? static_cast<std::size_t>(status.st_size) : 0;
}

bool SharedRegion::reserve(std::size_t offset, std::size_t num_bytes) noexcept {
  // fallocate only ever extends the file, so ranks may reserve at the same time.
  while (fallocate(fd(), 0, static_cast<off_t>(offset), static_cast<off_t>(num_bytes)) != 0) {
    if (errno != EINTR) return false;
  }
  return true;
}

std::byte* SharedRegion::map(std::size_t offset, std::size_t num_bytes) {
  const std::lock_guard lock(mutex_);
  Extent& extent = extents_[offset];
  if (extent.users == 0) {
    void* data = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd(),
                      static_cast<off_t>(offset));
    if (data == MAP_FAILED) {
      const int error = errno;
      extents_.erase(offset);
      throw_system("cannot map " + std::to_string(num_bytes) + " bytes of shared memory", error);
    }
    extent = {.data = static_cast<std::byte*>(data), .num_bytes = num_bytes};
  }
  ++extent.users;
  return extent.data;
}

void SharedRegion::unmap(std::size_t offset) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = extents_.find(offset);
  if (found == extents_.end() || --found->second.users > 0) return;
  munmap(found->second.data, found->second.num_bytes);
  extents_.erase(found);
}

void SharedRegion::discard(std::size_t offset, std::size_t num_bytes) noexcept {
  fallocate(fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
            static_cast<off_t>(num_bytes));
}

}  // namespace magi::comm
