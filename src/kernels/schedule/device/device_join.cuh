// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/schedule/device/device_build.cuh"
#include "kernels/schedule/host/tile_join.hpp"

// join_parts by one warp. It ranks parts by counting smaller ones. The neighbours of a part tell
// whether it begins or ends a run, so the warp joins all runs at once.
namespace magi {

/// `kMost`: the most parts, with the pieces of cut ones.
template <int kMost = kMostJoinedParts>
class PartJoiner {
  static_assert(kMost <= kMostJoinedParts && kMost % kWarpLanes == 0);
  static_assert(kMostCutParts == kMostJoinedParts / 2);

 public:
  /// Parts [0, count) lie in shared memory. All lanes call. `first` is the side to join along
  /// first, as in join_parts.
  __device__ PartJoiner(BandSlice* parts, JoinAlong first) : parts_(parts), first_(first) {}

  /// Returns the number of parts left, which come first; 0: none were joined, and the parts are in
  /// any order.
  __device__ std::int32_t join(std::int32_t count) const {
    if (count < 2 || !may_join(count)) return 0;
    const bool is_by_queries = first_ == JoinAlong::Queries;
    const std::int32_t num_pieces = is_by_queries && count <= kMost / 2 ? cut(count) : count;
    std::int32_t num_left = num_pieces;
#pragma unroll kSidesAtOnce
    for (int side = 0; side < 2; ++side) {
      const bool is_along_queries = is_by_queries == (side == 0);
      num_left = join_along(num_left, is_along_queries ? JoinAlong::Queries : JoinAlong::Keys);
    }
    return is_worth_joining(count, num_pieces, num_left) ? num_left : 0;
  }

 private:
  static constexpr int kRounds = kMost / kWarpLanes;
  /// Few parts run the same code twice, as a warp takes longer to read code than to run it.
  static constexpr int kSidesAtOnce = kMost == kWarpLanes ? 1 : 2;

  /// False if no part begins where another ends, even after cuts: the usual case, found long before
  /// all parts are sorted.
  __device__ bool may_join(std::int32_t count) const {
    if (count > kWarpLanes) return true;
    BandSlice own;
    if (lane_index() < count) own = parts_[lane_index()];
    if (!has_common_begins(count, own)) return false;
    bool is_found = false;
#pragma unroll 1
    for (std::int32_t j = 0; j < count; ++j) {
      const BandSlice other = parts_[j];
      is_found |= is_continued(own, other, JoinAlong::Queries, kNoKeyCut) ||
                  is_continued(own, other, JoinAlong::Keys, kNoKeyCut) ||
                  common_keys_end(own, other) > own.k0;
    }
    return __any_sync(kFullWarp, is_found && lane_index() < count) != 0;
  }

  /// Whether some of the parts, one per lane, begin with the same query or key. All parts that can
  /// be joined do, and parts of packed documents never do.
  __device__ static bool has_common_begins(std::int32_t count, const BandSlice& own) {
    const unsigned parts = kFullWarp >> (kWarpLanes - count);
    bool is_common = false;
    if (lane_index() < count) {
      const unsigned of_query = __match_any_sync(parts, own.q0);
      const unsigned of_key = __match_any_sync(parts, own.k0);
      is_common = __popc(of_query) > 1 || __popc(of_key) > 1;
    }
    return __any_sync(kFullWarp, is_common) != 0;
  }

  /// Cuts parts as cut_parts does; pieces come after them. Returns the new number of parts.
  __device__ std::int32_t cut(std::int32_t count) const {
    constexpr int kCutRounds = (kRounds + 1) / 2;
    BandSlice own[kCutRounds];
    std::int32_t ends[kCutRounds];
#pragma unroll
    for (int round = 0; round < kCutRounds; ++round) {
      const std::int32_t i = round * kWarpLanes + lane_index();
      if (i < count) own[round] = parts_[i];
      ends[round] = own[round].k0;
#pragma unroll 1
      for (std::int32_t j = 0; i < count && j < count; ++j) {
        ends[round] = max(ends[round], common_keys_end(own[round], parts_[j]));
      }
    }
    __syncwarp();
#pragma unroll
    for (int round = 0; round < kCutRounds; ++round) {
      const bool is_cut = ends[round] > own[round].k0;
      const unsigned cuts = __ballot_sync(kFullWarp, is_cut);
      if (is_cut) {
        const std::int32_t place = count + __popc(cuts & ((1u << lane_index()) - 1));
        parts_[round * kWarpLanes + lane_index()] =
            shrink(cut_k(own[round], {own[round].k0, ends[round]}));
        parts_[place] = shrink(cut_k(own[round], {ends[round], own[round].k1}));
      }
      count += __popc(cuts);
    }
    __syncwarp();
    return count;
  }

  __device__ std::int32_t join_along(std::int32_t count, JoinAlong along) const {
    sort(count, along);
    unsigned ends[kRounds];  // a bit for each part that ends a run
    BandSlice runs[kRounds];
    std::int32_t places[kRounds];
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const std::int32_t i = round * kWarpLanes + lane_index();
      const bool is_end = i < count && (i + 1 == count ||
                                        !is_continued(parts_[i], parts_[i + 1], along, kNoKeyCut));
      ends[round] = __ballot_sync(kFullWarp, is_end);
    }
    std::int32_t num_before = 0;  // runs of the rounds before
    std::int32_t last_end = -1;   // of them
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const unsigned below = ends[round] & ((1u << lane_index()) - 1);
      const std::int32_t i = round * kWarpLanes + lane_index();
      places[round] = -1;
      if ((ends[round] >> lane_index() & 1) != 0) {
        const std::int32_t before =
            below == 0 ? last_end : round * kWarpLanes + kWarpLanes - 1 - __clz(below);
        places[round] = num_before + __popc(below);
        runs[round] = joined_run(parts_[before + 1], parts_[i], along);
      }
      if (ends[round] != 0) last_end = round * kWarpLanes + kWarpLanes - 1 - __clz(ends[round]);
      num_before += __popc(ends[round]);
    }
    __syncwarp();
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      if (places[round] >= 0) parts_[places[round]] = runs[round];
    }
    __syncwarp();
    return num_before;
  }

  /// Each part is read once for all rounds, whose comparisons do not wait for one another.
  __device__ void sort(std::int32_t count, JoinAlong along) const {
    BandSlice own[kRounds];
    JoinKey keys[kRounds];
    std::int32_t ranks[kRounds] = {};
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const std::int32_t i = round * kWarpLanes + lane_index();
      if (i < count) own[round] = parts_[i];
      keys[round] = join_key(own[round], along);
    }
#pragma unroll 1
    for (std::int32_t j = 0; j < count; ++j) {
      const JoinKey other = join_key(parts_[j], along);
#pragma unroll
      for (int round = 0; round < kRounds; ++round) {
        if (round * kWarpLanes >= count) break;
        const bool is_earlier = j < round * kWarpLanes + lane_index();
        ranks[round] += comes_before(other, keys[round], is_earlier) ? 1 : 0;
      }
    }
    __syncwarp();
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      if (round * kWarpLanes + lane_index() < count) parts_[ranks[round]] = own[round];
    }
    __syncwarp();
  }

  BandSlice* parts_;
  JoinAlong first_;
};

/// Joins as the PartJoiner of the most parts does. Few take less code, which a warp reads once.
__device__ __forceinline__ std::int32_t join_by_warp(BandSlice* parts, std::int32_t count,
                                                     JoinAlong first) {
  return count <= kWarpLanes / 2 ? PartJoiner<kWarpLanes>(parts, first).join(count)
                                 : PartJoiner(parts, first).join(count);
}

/// Counts the k tiles of the parts of a tile, by one warp.
__device__ __forceinline__ std::uint64_t count_k_tiles(const BandSlice* parts, std::int32_t count,
                                                       const Range& rows, std::int32_t keys) {
  unsigned num_k_tiles = 0;
#pragma unroll 1
  for (std::int32_t i = lane_index(); i < count; i += kWarpLanes) {
    num_k_tiles += static_cast<unsigned>(tile_run(parts[i], rows.begin, rows.end, keys).num_tiles);
  }
  return __reduce_add_sync(kFullWarp, num_k_tiles);
}

}  // namespace magi
