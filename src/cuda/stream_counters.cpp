// SPDX-License-Identifier: Apache-2.0
#include "cuda/stream_counters.hpp"

#include <algorithm>
#include <span>

#include "cuda/check.hpp"

namespace magi {
namespace {

constexpr std::size_t kCountersPerChunk = 64;

}  // namespace

StreamCounters::StreamCounters() {
  const std::lock_guard lock(mutex_);
  free_.push_back(take_locked());
}

unsigned* StreamCounters::of_stream(cudaStream_t stream) {
  unsigned long long id = 0;
  cuda_check(cudaStreamGetId(stream, &id), "cudaStreamGetId");
  const std::lock_guard lock(mutex_);
  const auto found = by_stream_.find(id);
  if (found != by_stream_.end()) return found->second;
  unsigned* counter = take_locked();
  by_stream_.emplace(id, counter);
  return counter;
}

unsigned* StreamCounters::take() {
  const std::lock_guard lock(mutex_);
  return take_locked();
}

void StreamCounters::put_back(unsigned* counter) {
  const std::lock_guard lock(mutex_);
  free_.push_back(counter);
}

std::size_t StreamCounters::size_bytes() const {
  const std::lock_guard lock(mutex_);
  return chunks_.size() * kCountersPerChunk * kWords * sizeof(unsigned);
}

unsigned* StreamCounters::take_locked() {
  if (free_.empty()) {
    const std::vector<unsigned> zeros(kCountersPerChunk * kWords, 0);
    chunks_.push_back(to_device_sync(std::span<const unsigned>(zeros)));
    auto* first = static_cast<unsigned*>(chunks_.back().data());
    for (std::size_t i = kCountersPerChunk; i-- > 0;) free_.push_back(first + i * kWords);
  }
  unsigned* counter = free_.back();
  free_.pop_back();
  return counter;
}

}  // namespace magi
