// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/check.hpp"
#include "kernels/schedule/blocks/block_key_lists.hpp"
#include "kernels/schedule/blocks/mask_chunks.cuh"
#include "kernels/schedule/device/device_build.cuh"
#include "kernels/schedule/device/seen_rows.cuh"

// Rows that a block mask leaves out: a bit per query and per key, for the backward.
namespace magi {

inline constexpr int kTileThreads = 256;

/// Arguments of the kernels of a build.
struct BlockKeyBuild {
  BlockKeyShape shape;
  BlockListSource source;
  std::uint64_t* counts = nullptr;
  std::uint32_t* num_bad = nullptr;
  BackwardOutcome* outcomes = nullptr;
  KeyRecord* records = nullptr;
  KeyTile* found = nullptr;
  KeyTile* tiles = nullptr;
  std::uint32_t* seen_queries = nullptr;
  std::uint32_t* seen_keys = nullptr;
  std::int32_t tiles_per_cta = 1;
  // The host divides once for these, and kernels keep no registers for them.
  MaskExtent mask;
  std::int32_t num_q = 0;
  std::int32_t num_k = 0;
};

inline constexpr std::int32_t kSeenRows = kTileThreads / kWarpLanes;  // blocks of queries at a time
inline constexpr std::int32_t kSeenPasses = 8;

/// A CTA per kSeenPasses * kSeenRows blocks of queries and kWarpLanes blocks of keys of a head:
/// marks those that see, or are seen.
static __global__ void __launch_bounds__(kTileThreads)
    seen_kernel(const __grid_constant__ BlockKeyBuild build) {
  __shared__ unsigned seen[kSeenRows];
  const BlockGrid& grid = build.shape.grid;
  const auto head = static_cast<std::int32_t>(blockIdx.z);
  const std::int32_t column = static_cast<std::int32_t>(blockIdx.x) * kWarpLanes + lane_index();
  unsigned columns = 0;
  for (std::int32_t pass = 0; pass < kSeenPasses; ++pass) {
    const std::int32_t block =
        (static_cast<std::int32_t>(blockIdx.y) * kSeenPasses + pass) * kSeenRows + warp_index();
    if (block >= build.num_q) break;
    const bool is_seen =
        column < min(build.num_k, grid.num_reached(block)) &&
        build.source.visible[std::int64_t{grid.list_of(head, block)} * build.num_k + column] != 0;
    const unsigned of_row = __ballot_sync(kFullWarp, is_seen);
    columns |= of_row;
    if (lane_index() != 0 || of_row == 0) continue;
    mark_seen(build.seen_queries + std::int64_t{head} * num_seen_words(grid.rows_q),
              block * grid.q_block, grid.last_row(block) + 1);
  }
  if (lane_index() == 0) seen[warp_index()] = columns;
  __syncthreads();
  if (warp_index() != 0) return;
  for (const unsigned of_warp : seen) columns |= of_warp;
  if ((columns >> lane_index() & 1) == 0) return;
  mark_seen(build.seen_keys + std::int64_t{head} * num_seen_words(grid.rows_k),
            column * grid.k_block, min((column + 1) * grid.k_block, grid.rows_k));
}

/// Enqueues seen_kernel over the whole mask.
inline void mark_seen_blocks(const BlockKeyBuild& build, cudaStream_t stream) {
  const auto ctas = [](std::int32_t blocks, std::int32_t per_cta) {
    return static_cast<unsigned>((blocks + per_cta - 1) / per_cta);
  };
  const dim3 grid(ctas(build.num_k, kWarpLanes), ctas(build.num_q, kSeenRows * kSeenPasses),
                  static_cast<unsigned>(build.shape.grid.mask_heads));
  if (build.num_q == 0) return;
  seen_kernel<<<grid, kTileThreads, 0, stream>>>(build);
  cuda_check(cudaGetLastError(), "seen_kernel");
}

}  // namespace magi
