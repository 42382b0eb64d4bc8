// SPDX-License-Identifier: Apache-2.0
#include "doctor/gpus.hpp"

#include <cuda_runtime_api.h>

#include <memory>
#include <utility>

#include "common/random_values.hpp"
#include "cuda/check.hpp"
#include "cuda/device.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "cuda/timing.hpp"
#include "kernels/attention/backend.hpp"
#include "magi/runtime.hpp"

namespace magi::cli {
namespace {

/// 13000 is 13.0.
std::string cuda_version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

GpuFacts facts_of(std::int32_t device) {
  const DeviceInfo info = device_info(device);
  GpuFacts facts{.name = device_name(device), .major = info.major, .minor = info.minor};
  facts.num_sms = info.num_sms;
  const DeviceScope scope(device);
  int shared_bytes = 0;
  cuda_check(cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
             "cudaDeviceGetAttribute");
  facts.block_shared_bytes = shared_bytes;
  std::size_t free_bytes = 0, total_bytes = 0;
  cuda_check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  facts.memory_bytes = static_cast<std::int64_t>(total_bytes);
  facts.free_bytes = static_cast<std::int64_t>(free_bytes);
  try {
    facts.backend = find_backend("", device)->name();
  } catch (const InvalidArgument& error) {
    facts.refusal = error.what();
  }
  return facts;
}

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

/// The group that carries rows between the GPUs of `base`'s ranks; null: `base` itself.
std::unique_ptr<Communicator> fastest_group(Communicator& base) {
  const std::shared_ptr<Communicator> borrowed(std::shared_ptr<void>(), &base);
  try {
    return make_nvlink_group(borrowed, base.rank());
  } catch (const CommError&) {  // on all ranks alike
  }
  const auto bootstrap = [&base](std::span<const std::byte> bytes) {
    return base.allgather_sync(bytes);
  };
  try {
    return make_nccl_group(base.rank(), base.num_ranks(), base.rank(), bootstrap);
  } catch (const CommError&) {
    return nullptr;
  }
}

}  // namespace

GpuMachine find_gpus() {
  GpuMachine machine;
  int version = 0;
  if (cuda_forget(cudaRuntimeGetVersion(&version)) == cudaSuccess) {
    machine.runtime = cuda_version_text(version);
  }
  if (cuda_forget(cudaDriverGetVersion(&version)) != cudaSuccess || version == 0) {
    machine.refusal = "there is no NVIDIA driver";
    return machine;
  }
  machine.driver = "CUDA " + cuda_version_text(version);
  int count = 0;
  const cudaError_t found = cuda_forget(cudaGetDeviceCount(&count));
  if (found != cudaSuccess || count == 0) {
    machine.refusal = found != cudaSuccess ? cudaGetErrorString(found) : "the driver shows no GPU";
    return machine;
  }
  for (std::int32_t device = 0; device < count; ++device) {
    machine.gpus.push_back(facts_of(device));
  }
  for (std::int32_t reader = 0; reader < count; ++reader) {
    for (std::int32_t other = 0; other < count; ++other) {
      int can_access = reader == other ? 1 : 0;
      if (reader != other) {
        cuda_check(cudaDeviceCanAccessPeer(&can_access, reader, other), "cudaDeviceCanAccessPeer");
      }
      machine.has_peer_access.push_back(can_access != 0);
    }
  }
  return machine;
}

void on_gpu(std::int32_t device, const std::function<void(const RankPlace&)>& body) {
  const DeviceScope scope(device);
  const Stream stream;
  StreamClock clock(stream);
  body({.device = device,
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

std::string run_gpu_ranks(
    std::int32_t num_ranks,
    const std::function<void(Communicator& group, const RankPlace& place)>& body) {
  std::string transport;
  run_ranks(num_ranks, [&](Communicator& base) {
    on_gpu(base.rank(), [&](const RankPlace& place) {
      const auto fastest = fastest_group(base);
      Communicator& group = fastest != nullptr ? *fastest : base;
      if (base.rank() == 0) transport = fastest != nullptr ? fastest->backend() : "copies";
      body(group, place);
      group.close_sync();
    });
  });
  return transport;
}

}  // namespace magi::cli
