// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <vector>

#include "cuda/memory.hpp"
#include "kernels/worklist/device_list.hpp"

// The step of a device list's build that sorts the tiles, and what cub::DeviceRadixSort takes for
// the same keys.
namespace magi::bench {

/// Enqueues the step `sort` on a workspace in which a list has been built: it takes as long.
void sort_tiles_again(const DeviceListShape& shape, const DeviceListLayout& layout,
                      const SliceArrays& slices, void* workspace, cudaStream_t stream);

/// Sorts keys of (cost below the largest) << 32 | tile, of which the host knows no more than the
/// largest number and that costs have 30 bits.
class CubTileSort {
 public:
  explicit CubTileSort(std::span<const std::uint64_t> keys);

  void enqueue(cudaStream_t stream) const;
  std::vector<std::uint64_t> sorted_sync() const;

 private:
  std::int32_t count_;
  DeviceBuffer keys_;
  DeviceBuffer sorted_;
  DeviceBuffer scratch_;
};

}  // namespace magi::bench
