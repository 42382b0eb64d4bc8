// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/check.hpp"
#include "kernels/sm90/backward/destinations.hpp"

namespace magi::sm90 {
namespace {

/// The number that fits 4 KiB of kernel arguments, which every driver allows.
constexpr int kBatch = 48;

struct DestinationBatch {
  KeyDestination values[kBatch];
  KeyDestination* target = nullptr;
  int count = 0;
};
static_assert(sizeof(DestinationBatch) <= 4096);

__global__ void __launch_bounds__(kBatch)
    store_destinations_kernel(const __grid_constant__ DestinationBatch batch) {
  const auto i = static_cast<int>(threadIdx.x);
  if (i < batch.count) batch.target[i] = batch.values[i];
}

}  // namespace

void store_destinations(std::span<const KeyDestination> destinations, KeyDestination* target,
                        cudaStream_t stream) {
  for (std::size_t begin = 0; begin < destinations.size(); begin += kBatch) {
    const auto part =
        destinations.subspan(begin, std::min<std::size_t>(kBatch, destinations.size() - begin));
    DestinationBatch batch;
    std::copy(part.begin(), part.end(), batch.values);
    batch.target = target + begin;
    batch.count = static_cast<int>(part.size());
    store_destinations_kernel<<<1, kBatch, 0, stream>>>(batch);
    cuda_check(cudaGetLastError(), "store_destinations_kernel");
  }
}

}  // namespace magi::sm90
