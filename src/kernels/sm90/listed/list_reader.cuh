// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sm90/listed/params.hpp"

namespace magi::sm90 {

inline constexpr std::int32_t kNoKey = -1;

/// Reads the list of one query and kv head, and counts entries that name no block of the keys.
class ListReader {
 public:
  __device__ __forceinline__ explicit ListReader(const ListedIndices& lists) : lists_(lists) {}

  /// `is_counting`: whether this reader counts bad entries; one reader of each list does.
  __device__ __forceinline__ void open(std::int32_t row, std::int32_t kv_head,
                                       std::int32_t heads_kv, bool is_counting) {
    list_ = lists_.data + row * lists_.row_stride + kv_head * lists_.head_stride;
    first_place_ = (std::int64_t{row} * heads_kv + kv_head) * lists_.entries;
    is_counting_ = is_counting && lists_.report != nullptr;
  }

  __device__ __forceinline__ std::int32_t num_positions() const { return lists_.num_positions; }

  /// The first entry; others follow at entry_stride elements.
  __device__ __forceinline__ const std::int32_t* entries() const { return list_; }

  /// Returns the entry at a position, or -1 after the end.
  __device__ __forceinline__ std::int32_t entry_at(std::int32_t position) const {
    if (position >= lists_.num_positions) return -1;
    return __ldg(list_ + place_of(position) * lists_.entry_stride);
  }

  /// Returns the key at a position with this entry, or kNoKey.
  __device__ __forceinline__ std::int32_t key_of(std::int32_t entry, std::int32_t position) const {
    if (entry < 0 || entry >= lists_.num_blocks) return kNoKey;
    const std::int32_t key = entry * lists_.block_keys + offset_of(position);
    return key < lists_.rows_k ? key : kNoKey;
  }

  /// Counts an entry if it is bad. The caller passes every position of the list once.
  __device__ __forceinline__ void note(std::int32_t entry, std::int32_t position) {
    const bool is_bad = entry != -1 && (entry < 0 || entry >= lists_.num_blocks);
    if (!is_bad || !is_counting_ || offset_of(position) != 0) return;
    const auto place = static_cast<unsigned long long>(first_place_ + place_of(position));
    first_bad_ = place < first_bad_ ? place : first_bad_;
    ++num_bad_;
  }

  /// Adds the counts to the report.
  __device__ __forceinline__ void add_to_report() const {
    if (num_bad_ == 0) return;
    atomicAdd(lists_.report, num_bad_);
    atomicMin(lists_.report + 1, first_bad_);
  }

 private:
  __device__ __forceinline__ std::int32_t place_of(std::int32_t position) const {
    return lists_.block_keys == 1 ? position : position / lists_.block_keys;
  }
  __device__ __forceinline__ std::int32_t offset_of(std::int32_t position) const {
    return lists_.block_keys == 1 ? 0 : position % lists_.block_keys;
  }

  const ListedIndices& lists_;
  const std::int32_t* list_ = nullptr;
  std::int64_t first_place_ = 0;
  bool is_counting_ = false;
  unsigned long long num_bad_ = 0;
  unsigned long long first_bad_ = ~0ull;
};

/// Returns the number of tiles of kKeys positions up to the list's last key. Trailing -1 entries
/// cost one load each and no arithmetic. If `is_noting`, counts bad entries of the later tiles.
/// Called by a whole warp.
template <int kKeys>
__device__ __forceinline__ int count_tiles(ListReader& reader, int lane, bool is_noting) {
  int num_tiles = (reader.num_positions() + kKeys - 1) / kKeys;
  for (; num_tiles > 0; --num_tiles) {
    std::int32_t entries[kKeys / 32];
    const std::int32_t begin = (num_tiles - 1) * kKeys + lane;
    bool has_key = false;
#pragma unroll
    for (int i = 0; i < kKeys / 32; ++i) entries[i] = reader.entry_at(begin + 32 * i);
#pragma unroll
    for (int i = 0; i < kKeys / 32; ++i) {
      has_key |= reader.key_of(entries[i], begin + 32 * i) != kNoKey;
    }
    if (__any_sync(0xffffffffu, has_key)) break;
    if (!is_noting) continue;
#pragma unroll
    for (int i = 0; i < kKeys / 32; ++i) reader.note(entries[i], begin + 32 * i);
  }
  return num_tiles;
}

}  // namespace magi::sm90
