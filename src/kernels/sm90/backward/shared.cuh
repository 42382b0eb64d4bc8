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
  std::int32_t sum = 0;  ///< of dQ: index of lse2, delta and dq_sums
  std::int32_t q_tile = 0;
  std::int32_t record = 0;
  std::int32_t key_low = 0;
  std::int32_t key_high = 0;
  std::int32_t q_low = 0;
  std::int32_t q_high = 0;
  std::int32_t low = 0;
  std::int32_t high = 0;
  std::int32_t padding[2] = {0, 0};
};
static_assert(sizeof(StepInfo) == 48);

enum StepFlag : std::int32_t {
  kMasked = 1,
  kLastStep = 2,    ///< of its item
  kEndOfSteps = 4,  ///< no step
};

/// What the producer tells of one item, and keeps for itself.
struct alignas(16) ItemInfo {
  std::int32_t flags = 0;
  std::int32_t index = 0;  ///< tile position * columns + column
  std::int32_t key_begin = 0;
  std::int32_t num_keys = 0;
  std::int32_t kv_head = 0;
  std::int32_t record_begin = 0;
  std::int32_t record_end = 0;
  std::int32_t group_end = 0;
};
static_assert(sizeof(ItemInfo) == 32);

/// Where the producer is: it has few registers.
struct ProducerState {
  StepInfo mask;  ///< as if the q tile began at token 0
  std::int32_t record = 0;
  std::int32_t group = 0;
  std::int32_t tile_begin = 0;
  std::int32_t full_begin = 0;
  std::int32_t full_end = 0;
  std::int32_t last_tile = 0;  ///< of the item, if it is in this record
  bool is_sent = false;        ///< the item
};

enum ItemFlag : std::int32_t {
  kHasSteps = 1,
  kEndOfItems = 2,  ///< no item
};

/// Named barriers and who arrives.
/// | barrier          | arrivals                        | meaning                              |
/// |------------------|---------------------------------|--------------------------------------|
/// | kScores          | both warpgroups                 | dS of a step is in shared memory     |
/// | kDqFull + w      | warpgroup w; the dQ warp waits  | w's part of a dQ is in shared memory |
/// | kDqEmpty + w     | the dQ warp; warpgroup w waits  | it has been read                     |
/// | kDkvEpilogue + w | warpgroup w                     | w's V rows may be overwritten        |
/// | kPieces          | both warpgroups                 | a piece is in memory, or is the last |
enum BackwardBarrier : int {
  kScores = 1,
  kDqFull = 2,
  kDqEmpty = 4,
  kDkvEpilogue = 6,
  kPieces = 8
};

/// A step's info is overwritten kInfoStages steps later: by then its Q buffer has been handed back
/// and the dQ of the step before has been taken, so that nobody reads it any more.
inline constexpr int kInfoStages = 8;

template <BackwardConfig kC>
struct BackwardStorage {
  alignas(1024) std::uint8_t k[kC.kv_bytes()];
  alignas(1024) std::uint8_t v[kC.kv_bytes()];  ///< later the item's dK and dV on their way out
  alignas(1024) std::uint8_t q[kC.q_stages][kC.q_bytes()];
  alignas(1024) std::uint8_t dout[kC.dout_stages][kC.q_bytes()];
  alignas(1024) std::uint8_t scores[2][kC.score_bytes()];  ///< dS^T: 128-byte rows, one per key
  alignas(128) float dq[kC.consumers][kC.dq_floats()];
  alignas(128) float lse2[kC.q_stages][kC.rows];
  alignas(128) float delta[kC.dout_stages][kC.rows];
  StepInfo steps[kInfoStages];
  ProducerState producer;
  ItemInfo items[2];
  ptx::Mbarrier q_full[kC.q_stages];
  ptx::Mbarrier q_empty[kC.q_stages];
  ptx::Mbarrier dout_full[kC.dout_stages];
  ptx::Mbarrier dout_empty[kC.dout_stages];
  ptx::Mbarrier k_full;
  ptx::Mbarrier k_empty;
  ptx::Mbarrier v_full;
  ptx::Mbarrier v_empty;
  std::int32_t is_last_piece;
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
