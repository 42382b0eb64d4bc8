// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/ptx/barrier.cuh"
#include "kernels/sm90/backward/config.hpp"

namespace magi::sm90 {

/// What the producer tells of one q tile of one record. The mask, where one is needed: the key in
/// row r of the k tile is seen by the tokens [max(q_low, r + low), min(q_high, r + high)) of the q
/// tile if key_low <= r < key_high, else by none.
struct alignas(16) StepInfo {
  std::int32_t flags = 0;
  std::int32_t sum = 0;    ///< of dQ: index of levels, offsets and dq_sums
  std::int32_t group = 0;  ///< of heads
  std::int32_t q_tile = 0;
  std::int32_t record = 0;
  std::int32_t key_low = 0;
  std::int32_t key_high = 0;
  std::int32_t q_low = 0;
  std::int32_t q_high = 0;
  std::int32_t low = 0;
  std::int32_t high = 0;
  std::int32_t padding = 0;
};
static_assert(sizeof(StepInfo) == 48);

enum StepFlag : std::int32_t {
  kMasked = 1,
  kLastStep = 2,    ///< of its item
  kEndOfSteps = 4,  ///< no step
};

/// What the producer tells of one item.
struct alignas(16) ItemInfo {
  std::int32_t flags = 0;
  std::int32_t key_begin = 0;
  std::int32_t num_keys = 0;
  std::int32_t kv_head = 0;
  std::int32_t slot = 0;         ///< of a piece
  std::int32_t counter = 0;      ///< index of piece_counts, the first warpgroup's
  std::int32_t awaited = 0;      ///< likewise, or -1: the slot may be touched when it stands
  std::int32_t num_awaited = 0;  ///< here
};
static_assert(sizeof(ItemInfo) == 32);

/// Where the producer is: it has few registers.
struct ProducerState {
  StepInfo mask;          ///< as if the q tile began at token 0
  std::int32_t span = 0;  ///< of the item
  std::int32_t groups_per_item = 0;
  std::int32_t k_tile = 0;       ///< of the item
  std::int32_t group_begin = 0;  ///< of the item
  std::int32_t record_end = 0;   ///< of the item
  std::int32_t record = 0;
  std::int32_t group = 0;
  std::int32_t index = 0;  ///< of the group in the item
  std::int32_t tile_begin = 0;
  std::int32_t full_begin = 0;
  std::int32_t full_end = 0;
  bool is_last = false;  ///< record of the item
  bool is_sent = false;  ///< the item
};

enum ItemFlag : std::int32_t {
  kHasSteps = 1,
  kEndOfItems = 2,  ///< no item
  kFirstPiece = 4,
  kLastPiece = 8,
};

/// What the watcher tells of a step's turn to add dQ.
struct alignas(16) TurnInfo {
  std::int64_t counter = 0;   ///< index of turn_counts, or kEndOfTurns
  std::int32_t is_first = 0;  ///< the sum is not cleared: it begins with this step's dQ
  std::int32_t is_last = 0;   ///< the sum is complete then, and the finisher's
  std::int32_t group = 0;     ///< of heads
  std::int32_t q_tile = 0;
};
static_assert(sizeof(TurnInfo) == 32);

/// A sum of dQ that is complete.
struct FinishInfo {
  std::int32_t group = 0;  ///< of heads, or kEndOfFinishes
  std::int32_t q_tile = 0;
};

/// Of a TurnInfo behind the last step's.
inline constexpr std::int64_t kEndOfTurns = -1;

/// Of a FinishInfo behind the last one.
inline constexpr std::int32_t kEndOfFinishes = -1;

/// Where the finisher is: it has few registers too. Quarters of all its sums, one after the other.
struct FinisherState {
  std::uint32_t quarter = 0;             ///< the first one that is not written
  std::uint32_t num_loaded = 0;          ///< or on their way
  const std::uint8_t* source = nullptr;  ///< the sum of the last one loaded
};

/// Named barriers and who arrives.
/// | barrier          | arrivals                          | meaning                              |
/// |------------------|-----------------------------------|--------------------------------------|
/// | kDkvEpilogue + w | warpgroup w                       | w's V rows may be overwritten        |
/// | kPieces + w      | warpgroup w                       | a piece may be, or has been, handed  |
enum BackwardBarrier : int { kDkvEpilogue = 2, kPieces = 4 };

/// A step's info is overwritten kInfoStages steps later: by then its Q buffer has been handed back
/// and the dQ of the steps before has been added, so that neither consumers nor the watcher, who is
/// ahead of them, read it any more.
inline constexpr int kInfoStages = 8;

/// A turn's info is overwritten when its step's dQ has been added.
inline constexpr int kTurnStages = 4;

/// Complete sums that the finisher has not written: an item may end many in a row.
inline constexpr int kFinishStages = 16;

/// A sum as the finisher reads it: quarters of four chunks, one after the other.
inline constexpr int kSumQuarters = 4;
inline constexpr int kQuarterStages = 3;
inline constexpr int kChunkBytes = 2048;
inline constexpr int kQuarterBytes = 4 * kChunkBytes;

/// Of dS: a warpgroup writes one while dQ is made of the other.
inline constexpr int kScoreStages = 2;

template <BackwardConfig kC>
struct BackwardStorage {
  alignas(1024) std::uint8_t k[kC.k_bytes()];
  alignas(
      1024) std::uint8_t v[kC.v_stage_bytes()];  ///< later the item's dK and dV on their way out
  alignas(1024) std::uint8_t q[kC.q_stages][kC.q_bytes()];
  alignas(1024) std::uint8_t dout[kC.dout_stages][kC.dout_bytes()];
  /// dS^T: 128-byte rows, one per key.
  alignas(1024) std::uint8_t scores[kScoreStages][kC.score_bytes()];
  alignas(128) float levels[kC.q_stages][kC.rows];
  alignas(128) float offsets[kC.dout_stages][kC.rows];
  StepInfo steps[kInfoStages];
  ProducerState producer;
  ItemInfo items[2];
  TurnInfo turns[kTurnStages];
  ptx::Mbarrier step_full[kInfoStages];     ///< for the watcher
  ptx::Mbarrier turn_ready[kTurnStages];    ///< the step's dQ may be added
  ptx::Mbarrier turn_empty[kTurnStages];    ///< it has been read, and the dQ added
  ptx::Mbarrier added[kTurnStages];         ///< both halves of the step's dQ
  ptx::Mbarrier scores_full[kScoreStages];  ///< dS of both warpgroups is there, dQ before it done
  ptx::Mbarrier q_full[kC.q_stages];
  ptx::Mbarrier q_empty[kC.q_stages];
  ptx::Mbarrier dout_full[kC.dout_stages];
  ptx::Mbarrier dout_empty[kC.dout_stages];
  ptx::Mbarrier k_full;
  ptx::Mbarrier k_empty;
  ptx::Mbarrier v_full;
  ptx::Mbarrier v_empty;
  FinishInfo finishes[kFinishStages];
  ptx::Mbarrier finish_full[kFinishStages];   ///< for the finisher
  ptx::Mbarrier finish_empty[kFinishStages];  ///< dq of it has been written
  ptx::Mbarrier sum_full[kQuarterStages];     ///< a quarter of a complete sum is there
  FinisherState finisher;
  alignas(128) std::uint8_t sums[kC.is_ordered ? kQuarterStages : 1][kQuarterBytes];
};

/// Stage and parity of use number `count` of a ring whose number of stages is a power of two.
template <int kStages>
__device__ __forceinline__ int ring_stage(std::uint32_t count) {
  static_assert((kStages & (kStages - 1)) == 0);
  return static_cast<int>(count % kStages);
}
template <int kStages>
__device__ __forceinline__ std::uint32_t ring_parity(std::uint32_t count) {
  return (count / kStages) & 1;
}

}  // namespace magi::sm90
