// SPDX-License-Identifier: Apache-2.0
#include "cuda/memory.hpp"

#include <map>
#include <mutex>
#include <new>

#include "base/math.hpp"
#include "cuda/capture.hpp"
#include "cuda/stream.hpp"

namespace magi {

DeviceBuffer::DeviceBuffer(std::size_t size_bytes) : size_bytes_(size_bytes) {
  if (size_bytes == 0) return;
  const UncapturedScope scope;
  cuda_check(cudaMalloc(&data_, size_bytes), "cudaMalloc");
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ == nullptr) return;
  const UncapturedScope scope;
  cuda_forget(cudaFree(data_));
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

void DeviceBuffer::fill(int byte, cudaStream_t stream) const {
  if (size_bytes_ == 0) return;
  cuda_check(cudaMemsetAsync(data_, byte, size_bytes_, stream), "cudaMemsetAsync");
}

namespace {

constexpr std::size_t kListAlignment = 256;

/// A stream of the current device for copies that are waited for. To make one takes as long as many
/// small copies, so that they are kept for the next time, as many as were in use at once.
class CopyStream {
 public:
  CopyStream() {
    cuda_check(cudaGetDevice(&device_), "cudaGetDevice");
    {
      const std::lock_guard lock(mutex());
      auto& free = kept()[device_];
      if (!free.empty()) {
        stream_ = std::move(free.back());
        free.pop_back();
      }
    }
    if (stream_ == nullptr) stream_ = std::make_unique<Stream>();
  }
  ~CopyStream() {
    const std::lock_guard lock(mutex());
    try {
      kept()[device_].push_back(std::move(stream_));
    } catch (const std::bad_alloc&) {
      // It ends with this object instead.
    }
  }
  CopyStream(const CopyStream&) = delete;
  CopyStream& operator=(const CopyStream&) = delete;

  void copy(void* target, const void* source, std::size_t size_bytes) const {
    cuda_check(cudaMemcpyAsync(target, source, size_bytes, cudaMemcpyDefault, stream_->handle()),
               "cudaMemcpyAsync");
  }
  void wait_sync() const { stream_->wait_sync(); }

 private:
  // Never destroyed: CUDA may have ended before the process does.
  static std::mutex& mutex() {
    static auto& mutex = *new std::mutex;
    return mutex;
  }
  static std::map<int, std::vector<std::unique_ptr<Stream>>>& kept() {
    static auto& kept = *new std::map<int, std::vector<std::unique_ptr<Stream>>>;
    return kept;
  }

  int device_ = 0;
  std::unique_ptr<Stream> stream_;
};

}  // namespace

DeviceBuffer bytes_to_device_sync(const void* bytes, std::size_t size_bytes) {
  DeviceBuffer buffer(size_bytes);
  if (size_bytes == 0) return buffer;
  const UncapturedScope scope;
  const CopyStream stream;
  stream.copy(buffer.data(), bytes, size_bytes);
  stream.wait_sync();
  return buffer;
}

std::vector<DeviceList> lists_to_device_sync(
    std::initializer_list<std::span<const std::byte>> lists) {
  std::size_t size_bytes = 0;
  for (const auto& list : lists) size_bytes += align_up(list.size(), kListAlignment);
  const auto block = std::make_shared<const DeviceBuffer>(size_bytes);
  std::vector<DeviceList> copies;
  std::size_t offset = 0;
  for (const auto& list : lists) {
    copies.emplace_back(block, offset, list.size());
    offset += align_up(list.size(), kListAlignment);
  }
  if (size_bytes == 0) return copies;
  const UncapturedScope scope;
  const CopyStream stream;
  auto copy = copies.begin();
  for (const auto& list : lists) {
    if (!list.empty()) stream.copy(copy->data(), list.data(), list.size());
    ++copy;
  }
  stream.wait_sync();
  return copies;
}

}  // namespace magi
