// SPDX-License-Identifier: Apache-2.0
#include "cuda/stream_counters.hpp"

#include <cstdint>
#include <map>
#include <span>

#include "cuda/check.hpp"
#include "cuda/device.hpp"

namespace magi {
namespace {

constexpr std::size_t kCountersPerChunk = 64;

}  // namespace

StreamCounters::StreamCounters() {
  const std::lock_guard lock(mutex_);
  free_.push_back(take_locked());
}

std::shared_ptr<StreamCounters> StreamCounters::shared() {
  // Never destroyed: the last owner may end after them.
  static auto& mutex = *new std::mutex;
  static auto& by_device = *new std::map<std::int32_t, std::weak_ptr<StreamCounters>>;
  const std::lock_guard lock(mutex);
  std::weak_ptr<StreamCounters>& known = by_device[current_device()];
  std::shared_ptr<StreamCounters> counters = known.lock();
  if (counters == nullptr) known = counters = std::make_shared<StreamCounters>();
  return counters;
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

void StreamCounters::put_back(unsigned* counter) noexcept {
  const std::lock_guard lock(mutex_);
  free_.push_back(counter);
}

unsigned* StreamCounters::take_locked() {
  if (free_.empty()) {
    const std::vector<unsigned> zeros(kCountersPerChunk * kWords, 0);
    chunks_.push_back(to_device_sync(std::span<const unsigned>(zeros)));
    free_.reserve(chunks_.size() * kCountersPerChunk);  // putting one back allocates nothing
    auto* first = static_cast<unsigned*>(chunks_.back().data());
    for (std::size_t i = kCountersPerChunk; i-- > 0;) free_.push_back(first + i * kWords);
  }
  unsigned* counter = free_.back();
  free_.pop_back();
  return counter;
}

}  // namespace magi
