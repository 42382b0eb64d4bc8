// SPDX-License-Identifier: Apache-2.0
#include "doctor/gpus.hpp"

#include <cuda_runtime_api.h>

#include "cuda/check.hpp"
#include "cuda/device.hpp"
#include "kernels/attention/backend.hpp"

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
  facts.block_shared_bytes = info.shared_bytes;
  const DeviceScope scope(device);
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

}  // namespace magi::cli
