// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/worklist/device_build.cuh"

namespace magi {

inline constexpr int kEmitThreads = 256;
inline constexpr int kEmitWarps = kEmitThreads / kWarpLanes;
inline constexpr std::int32_t kFewRecords = 128;  ///< sorted by one warp, by counting
inline constexpr int kWordBits = 32;
inline constexpr int kWordsPerThread = 8;
inline constexpr std::int32_t kWindow = kEmitThreads * kWordsPerThread * kWordBits;

struct EmitShared {
  std::int32_t ids[kEmitWarps][kFewRecords];
  unsigned words[kEmitThreads * kWordsPerThread];  ///< a bit per slice of the window
  ScanStorage<std::int32_t, kEmitThreads> scan;
};

/// Sorts the slices of each tile by index and writes their records. Few are ranked by counting the
/// smaller ones; many are marked in a bit map, window by window, and read back in order.
class RecordWriter {
 public:
  __device__ RecordWriter(EmitShared& shared, const DeviceBuild& build)
      : shared_(shared), build_(build), grid_(build.grids[build.header->packing]) {}

  __device__ void run() {
    const std::int32_t stride = static_cast<std::int32_t>(gridDim.x) * kEmitWarps;
    const auto first = static_cast<std::int32_t>(blockIdx.x) * kEmitWarps;
    for (std::int32_t position = first; position < grid_.num_tiles; position += stride) {
      const TileWork own = work_at(position + warp_index());
      if (num_stored(own) <= kFewRecords) write_few(own);
      for (int warp = 0; warp < kEmitWarps; ++warp) {
        const TileWork work = work_at(position + warp);
        if (num_stored(work) > kFewRecords) write_many(work);
      }
    }
  }

 private:
  __device__ TileWork work_at(std::int32_t position) const {
    return position < grid_.num_tiles ? build_.tiles[position] : TileWork{};
  }

  __device__ static std::int32_t num_stored(const TileWork& work) {
    return work.record_begin < 0 ? 0 : work.record_end - work.record_begin;
  }

  __device__ void write(const TileWork& work, std::int32_t position, std::int32_t slice) const {
    BandRecord record;
    record.band = part_of_tile(grid_, build_.slices[slice].band, work.tile);
    build_.records[position] = record;
  }

  __device__ void write_few(const TileWork& work) const {
    std::int32_t* ids = shared_.ids[warp_index()];
    const std::int32_t count = num_stored(work);
    for (std::int32_t i = lane_index(); i < count; i += kWarpLanes) {
      ids[i] = build_.slice_ids[work.record_begin + i];
    }
    __syncwarp();
    for (std::int32_t i = lane_index(); i < count; i += kWarpLanes) {
      std::int32_t rank = 0;
      for (std::int32_t j = 0; j < count; ++j) rank += ids[j] < ids[i] ? 1 : 0;
      write(work, work.record_begin + rank, ids[i]);
    }
    __syncwarp();
  }

  __device__ void write_many(const TileWork& work) const {
    const TileTally tally = build_.tallies[grid_.first_tally + work.tile];
    std::int64_t low = build_.source.count - tally.begin_inverse;
    std::int32_t next = work.record_begin;
    for (; low < tally.end_slice; low += kWindow) {
      mark_window(work, low);
      next += write_window(work, low, next);
    }
  }

  __device__ void mark_window(const TileWork& work, std::int64_t low) const {
    for (int i = 0; i < kWordsPerThread; ++i) shared_.words[threadIdx.x + i * kEmitThreads] = 0;
    __syncthreads();
    const std::int32_t first = work.record_begin + static_cast<std::int32_t>(threadIdx.x);
    for (std::int32_t i = first; i < work.record_end; i += kEmitThreads) {
      const std::int64_t bit = build_.slice_ids[i] - low;
      if (bit >= 0 && bit < kWindow) {
        atomicOr(&shared_.words[bit / kWordBits], 1u << static_cast<unsigned>(bit % kWordBits));
      }
    }
    __syncthreads();
  }

  /// Returns the number of records written.
  __device__ std::int32_t write_window(const TileWork& work, std::int64_t low,
                                       std::int32_t next) const {
    const int first_word = static_cast<int>(threadIdx.x) * kWordsPerThread;
    std::int32_t count = 0;
    for (int i = 0; i < kWordsPerThread; ++i) count += __popc(shared_.words[first_word + i]);
    const auto scan = scan_block<kEmitThreads>(count, shared_.scan);
    std::int32_t position = next + scan.before;
    for (int i = 0; i < kWordsPerThread; ++i) {
      for (unsigned left = shared_.words[first_word + i]; left != 0; left &= left - 1) {
        const int bit = (first_word + i) * kWordBits + __ffs(static_cast<int>(left)) - 1;
        write(work, position++, static_cast<std::int32_t>(low + bit));
      }
    }
    __syncthreads();
    return scan.total;
  }

  EmitShared& shared_;
  const DeviceBuild& build_;
  const TileGrid& grid_;
};

}  // namespace magi
