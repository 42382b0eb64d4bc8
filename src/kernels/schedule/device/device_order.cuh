// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/schedule/device/device_build.cuh"
#include "kernels/schedule/device/device_cluster.cuh"

// One cluster of CTAs scans the tiles' record counts, and later sorts the tiles if they are many
// (device_rank.cuh sorts few). The sort is least significant digit first and stable: each warp owns
// a run of neighbours and ranks their digits in order, so ties stay in index order whatever the
// threads' timing. Why it is not CUB's: docs/design.md, section 9.
namespace magi {

inline constexpr int kOrderThreads = 1024;
inline constexpr int kOrderWarps = kOrderThreads / kWarpLanes;
inline constexpr int kDigitBits = 8;
inline constexpr int kDigits = 1 << kDigitBits;

struct PlaceShared {
  std::uint64_t num_records;  ///< of this CTA's tiles, read by the others
  ScanStorage<std::uint64_t, kOrderThreads> record_scan;
};

/// Makes the works of the tiles, in index order: their records follow each other. kCtas CTAs.
template <int kCtas>
class RecordPlacer {
 public:
  __device__ RecordPlacer(PlaceShared& shared, const DeviceBuild& build)
      : shared_(shared),
        build_(build),
        rank_(Cluster<kCtas>::rank()),
        num_tiles_(build.grid.num_tiles),
        tallies_(build.tallies) {}

  __device__ void run() {
    const std::int32_t chunk = (num_tiles_ + kCtas - 1) / kCtas;
    const std::int32_t begin = min(rank_ * chunk, num_tiles_);
    const std::int32_t end = min(begin + chunk, num_tiles_);
    std::uint64_t own = 0;
#pragma unroll 1
    for (std::int32_t tile = begin + thread(); tile < end; tile += kOrderThreads) {
      own += static_cast<std::uint64_t>(tallies_[tile].num_records);
    }
    own = scan_block<kOrderThreads>(own, shared_.record_scan).total;
    if (thread() == 0) shared_.num_records = own;
    Cluster<kCtas>::sync();
    // Independent reads.
    std::uint64_t next = 0;
#pragma unroll
    for (int rank = 0; rank < kCtas; ++rank) {
      const std::uint64_t records = *Cluster<kCtas>::of_cta(&shared_.num_records, rank);
      if (rank < rank_) next += records;
    }
    Cluster<kCtas>::arrive();
    if (rank_ == kCtas - 1 && thread() == 0) report_records(build_, next + own);
#pragma unroll 1
    for (std::int32_t first = begin; first < end; first += kOrderThreads) {
      next += place_block(first + thread(), end, next);
    }
    Cluster<kCtas>::wait();  // no CTA leaves before others have read its count
  }

 private:
  /// Returns the number of records of the block's tiles.
  __device__ std::uint64_t place_block(std::int32_t tile, std::int32_t end, std::uint64_t next) {
    std::uint64_t count = 0;
    if (tile < end) count = static_cast<std::uint64_t>(tallies_[tile].num_records);
    const auto scan = scan_block<kOrderThreads>(count, shared_.record_scan);
    if (tile < end) {
      const auto begin = static_cast<std::int64_t>(next + scan.before);
      const TileWork work =
          work_of_tile(tile, tallies_[tile], begin, build_.record_capacity, build_.source.count);
      build_.placed[tile] = work;
      build_.begins[tile] = work.record_begin < 0 ? kNotStored : work.record_begin;
    }
    return scan.total;
  }

  __device__ static int thread() { return static_cast<int>(threadIdx.x); }

  PlaceShared& shared_;
  const DeviceBuild& build_;
  int rank_;
  std::int32_t num_tiles_;
  const TileTally* tallies_;
};

struct SortShared {
  std::uint32_t positions[kOrderWarps][kDigits];  ///< counts, then the next rank of each digit
  std::uint32_t totals[kDigits];                  ///< of this CTA, read by the others
  std::uint32_t bases[kDigits];
  ScanStorage<std::uint32_t, kOrderThreads> digit_scan;
};

/// Tiles to be sorted. Keys hold a field of 32 bits and the tile.
struct SortJob {
  std::int32_t num_tiles = 0;
  std::uint32_t least = 0;  ///< field
  std::uint32_t most = 0;
  std::uint64_t* keys = nullptr;
  std::uint64_t* room = nullptr;  ///< for as many keys
};

/// Sorts tiles by their field, ties as they were: all threads of kCtas CTAs.
template <int kCtas>
class TileSorter {
 public:
  __device__ TileSorter(SortShared& shared, const SortJob& job)
      : shared_(shared), job_(job), rank_(Cluster<kCtas>::rank()) {}

  /// Returns the sorted keys, job.keys or job.room, which all threads may read.
  __device__ std::uint64_t* run() {
    const int num_passes = count_passes();
    std::uint64_t* keys = job_.keys;
    std::uint64_t* room = job_.room;
#pragma unroll 1
    for (int pass = 0; pass < num_passes; ++pass) {
      sort_pass(keys, room, pass * kDigitBits);
      std::uint64_t* const sorted = room;
      room = keys;
      keys = sorted;
    }
    return keys;
  }

 private:
  __device__ int count_passes() const {
    const int bits = kWarpLanes - __clz(static_cast<int>(job_.most - job_.least));
    return (bits + kDigitBits - 1) / kDigitBits;
  }

  /// Calls visit(key, digit, peers) in order for the keys of this warp's run: `peers` are the lanes
  /// of equal digit.
  template <typename Visit>
  __device__ void walk_keys(const std::uint64_t* keys, int shift, Visit visit) {
    constexpr std::int32_t kRuns = kCtas * kOrderWarps;
    const std::int32_t run =
        (job_.num_tiles + kRuns * kWarpLanes - 1) / (kRuns * kWarpLanes) * kWarpLanes;
    const std::int64_t begin = std::int64_t{rank_ * kOrderWarps + warp_index()} * run;
    const std::int64_t end = begin + run < job_.num_tiles ? begin + run : job_.num_tiles;
#pragma unroll 1
    for (std::int64_t first = begin; first < end; first += kWarpLanes) {
      const std::int64_t i = first + lane_index();
      const unsigned active = __ballot_sync(kFullWarp, i < end);
      if (i < end) {
        const std::uint64_t key = keys[i];
        const std::uint32_t above = static_cast<std::uint32_t>(key >> 32) - job_.least;
        const std::uint32_t digit = (above >> shift) % kDigits;
        visit(key, digit, __match_any_sync(active, digit));
      }
      __syncwarp();
    }
  }

  /// Adds the peers to a counter of their digit, once; they share the value before.
  __device__ static std::uint32_t add_peers(std::uint32_t& counter, unsigned peers) {
    const int leader = __ffs(static_cast<int>(peers)) - 1;
    std::uint32_t before = 0;
    if (lane_index() == leader) {
      before = counter;
      counter = before + static_cast<std::uint32_t>(__popc(peers));
    }
    return __shfl_sync(peers, before, leader);
  }

  __device__ void sort_pass(const std::uint64_t* from, std::uint64_t* to, int shift) {
    std::uint32_t* own = shared_.positions[warp_index()];
#pragma unroll 1
    for (int digit = lane_index(); digit < kDigits; digit += kWarpLanes) own[digit] = 0;
    __syncwarp();
    walk_keys(from, shift, [&](std::uint64_t, std::uint32_t digit, unsigned peers) {
      add_peers(own[digit], peers);
    });
    __syncthreads();
    place_digits();
    walk_keys(from, shift, [&](std::uint64_t key, std::uint32_t digit, unsigned peers) {
      const std::uint32_t first = shared_.bases[digit] + add_peers(own[digit], peers);
      to[first + static_cast<std::uint32_t>(__popc(peers & lanes_below()))] = key;
    });
    Cluster<kCtas>::sync();
  }

  /// Turns the warps' counts into positions: by digit, then by CTA, then by warp.
  __device__ void place_digits() {
    const int digit = thread() % kDigits;
    std::uint32_t total = 0;
    if (thread() < kDigits) {
#pragma unroll 1
      for (int warp = 0; warp < kOrderWarps; ++warp) {
        const std::uint32_t count = shared_.positions[warp][digit];
        shared_.positions[warp][digit] = total;
        total += count;
      }
      shared_.totals[digit] = total;
    }
    Cluster<kCtas>::sync();
    std::uint32_t before = 0;
    std::uint32_t all = 0;
    if (thread() < kDigits) {
#pragma unroll
      for (int rank = 0; rank < kCtas; ++rank) {
        const auto* totals = Cluster<kCtas>::of_cta(shared_.totals, rank);
        if (rank < rank_) before += totals[digit];
        all += totals[digit];
      }
    }
    const std::uint32_t base = scan_block<kOrderThreads>(all, shared_.digit_scan).before;
    if (thread() < kDigits) shared_.bases[digit] = base + before;
    __syncthreads();
  }

  __device__ static unsigned lanes_below() { return (1u << lane_index()) - 1; }
  __device__ static int thread() { return static_cast<int>(threadIdx.x); }

  SortShared& shared_;
  const SortJob job_;
  int rank_;
};

/// A thread of the cluster, of kCtas * kOrderThreads.
template <int kCtas>
__device__ __forceinline__ std::int32_t thread_of_cluster() {
  return Cluster<kCtas>::rank() * kOrderThreads + static_cast<std::int32_t>(threadIdx.x);
}

}  // namespace magi
