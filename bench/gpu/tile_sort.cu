// SPDX-License-Identifier: Apache-2.0
#include <cub/device/device_radix_sort.cuh>

#include "cuda/check.hpp"
#include "gpu/tile_sort.hpp"
#include "kernels/worklist/device_build.cuh"

namespace magi::bench {
namespace {

constexpr int kFirstBit = 32;
constexpr int kEndBit = 62;

std::size_t scratch_bytes(std::int32_t count) {
  std::size_t bytes = 0;
  const std::uint64_t* keys = nullptr;
  std::uint64_t* sorted = nullptr;
  cuda_check(
      cub::DeviceRadixSort::SortKeys(nullptr, bytes, keys, sorted, count, kFirstBit, kEndBit),
      "SortKeys");
  return bytes;
}

}  // namespace

void sort_tiles_again(const DeviceListShape& shape, const DeviceListLayout& layout,
                      const SliceArrays& slices, void* workspace, cudaStream_t stream) {
  sort_tiles(make_device_build(shape, layout, slices, workspace), stream);
}

CubTileSort::CubTileSort(std::span<const std::uint64_t> keys)
    : count_(static_cast<std::int32_t>(keys.size())),
      keys_(to_device_sync<std::uint64_t>(keys)),
      sorted_(keys.size_bytes()),
      scratch_(scratch_bytes(count_)) {}

void CubTileSort::enqueue(cudaStream_t stream) const {
  std::size_t bytes = scratch_.size_bytes();
  cuda_check(cub::DeviceRadixSort::SortKeys(
                 scratch_.data(), bytes, static_cast<const std::uint64_t*>(keys_.data()),
                 static_cast<std::uint64_t*>(sorted_.data()), count_, kFirstBit, kEndBit, stream),
             "SortKeys");
}

std::vector<std::uint64_t> CubTileSort::sorted_sync() const {
  return to_host_sync<std::uint64_t>(sorted_.data(), static_cast<std::size_t>(count_));
}

}  // namespace magi::bench
