// SPDX-License-Identifier: Apache-2.0
#include "common/random_values.hpp"
#include "cuda/device.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "cuda/timing.hpp"
#include "ranks/rank_place.hpp"

namespace magi::cli {
namespace {

/// Times work on a stream that is busy while the host enqueues it.
class StreamClock {
 public:
  explicit StreamClock(const Stream& stream) : stream_(stream) {}

  double seconds_sync(const std::function<void()>& work) {
    if (lead_.size_bytes() == 0) lead_ = DeviceBuffer(kLeadBytes);
    for (int i = 0; i < kLeads; ++i) lead_.fill(0, stream_.handle());
    const Event begin, end;
    begin.record(stream_.handle());
    work();
    end.record(stream_.handle());
    return end.seconds_since_sync(begin);
  }

 private:
  static constexpr std::size_t kLeadBytes = std::size_t{1} << 29;
  static constexpr int kLeads = 16;  // some 2 ms on an H200

  const Stream& stream_;
  DeviceBuffer lead_;
};

}  // namespace

void on_gpu(std::int32_t device, const std::function<void(const RankPlace&)>& body) {
  const DeviceScope scope(device);
  const Stream stream;
  StreamClock clock(stream);
  body({.name = device_name(device),
        .device = device,
        .stream = stream.handle(),
        .allocate =
            [](std::int64_t size_bytes) {
              const auto buffer =
                  std::make_shared<DeviceBuffer>(random_bfloat16(size_bytes / 2 + 1, 1));
              return std::shared_ptr<void>(buffer, buffer->data());
            },
        .copy_sync =
            [&stream](void* to, const void* from, std::int64_t size_bytes) {
              stream.wait_sync();
              cuda_check(
                  cudaMemcpy(to, from, static_cast<std::size_t>(size_bytes), cudaMemcpyDefault),
                  "cudaMemcpy");
            },
        .time_sync =
            [&clock](const std::function<void()>& work) { return clock.seconds_sync(work); }});
}

}  // namespace magi::cli
