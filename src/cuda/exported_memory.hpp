// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/file_descriptor.hpp"
#include "cuda/driver.hpp"

// Memory of one GPU that other GPUs, also those of other processes, read and write: blocks of the
// driver's virtual memory management, which travel between processes as file descriptors.
namespace magi {

/// A block of a GPU's memory and its address in this process. The memory lives until every process
/// that mapped it has let it go.
class MappedMemory {
 public:
  /// New memory of `device`, zeroed, of at least `size_bytes`, that `devices` may read and write.
  /// Blocks. Throws CudaError where no memory is left or the GPU cannot export memory.
  static std::unique_ptr<MappedMemory> create(std::size_t size_bytes, std::int32_t device,
                                              std::span<const std::int32_t> devices);
  /// The block that another process exported as `fd`, for `device` to read and write.
  static std::unique_ptr<MappedMemory> import(const FileDescriptor& fd, std::size_t size_bytes,
                                              std::int32_t device);
  ~MappedMemory();
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  /// Returns a descriptor for another process to import.
  FileDescriptor export_fd() const;
  std::byte* data() const { return std::bit_cast<std::byte*>(address_); }
  /// A multiple of the granularity.
  std::size_t size_bytes() const { return size_bytes_; }

 private:
  MappedMemory() = default;
  void map(std::span<const std::int32_t> devices);

  CUmemGenericAllocationHandle handle_ = 0;
  bool has_handle_ = false;
  CUdeviceptr address_ = 0;
  bool is_mapped_ = false;
  std::size_t size_bytes_ = 0;
};

}  // namespace magi
