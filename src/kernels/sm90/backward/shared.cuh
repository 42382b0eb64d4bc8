// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/sm90/arrivals.cuh"
#include "kernels/sm90/backward/config.hpp"
#include "kernels/sm90/ring.cuh"

namespace magi::sm90 {

/// The producer's message about one q tile of one record. The mask, where one is needed: the key in
/// row r of the k tile is seen by the tokens [max(q_low, r + low), min(q_high, r + high)) of the q
/// tile if key_low <= r < key_high, else by none.
struct alignas(16) StepInfo {
  std::int32_t flags = 0;
  std::int32_t sum = 0;    ///< index of the dQ sum, and of its rows of lse_log2 and delta
  std::int32_t group = 0;  ///< head group
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
  kLastStep = 2,    ///< the item ends with this step
  kEndOfSteps = 4,  ///< there is no step any more
  kNoRows = 8,      ///< with own rows: the item has no further step for the step's warpgroup
};

/// The producer's message about one item.
struct alignas(16) ItemInfo {
  std::int32_t flags = 0;
  std::int32_t key_begin = 0;
  std::int32_t num_keys = 0;
  std::int32_t kv_head = 0;
  std::int32_t slot = 0;               ///< where the splits of the k tile are summed
  std::int32_t semaphore = 0;          ///< index of split_semaphores for the first warpgroup
  std::int32_t awaited_semaphore = 0;  ///< likewise, or -1: the slot may be touched when it has
  std::int32_t awaited_value = 0;      ///< this value
  std::int32_t first_segment = 0;      ///< of KeyGradients::destinations: the first key's
  std::int32_t padding[7] = {};        ///< NOTE: with 48 bytes ptxas spills in the consumers' step
};
static_assert(sizeof(ItemInfo) == 64);

enum ItemFlag : std::int32_t {
  kHasSteps = 1,
  kEndOfItems = 2,  ///< there is no item any more
  kFirstSplit = 4,
  kLastSplit = 8,
};

/// The producer's message about tiles with rows that nobody sees, which it does not load itself.
struct CutRequest {
  enum Kind : std::int32_t { kRows, kKeys, kValues, kEnd };
  std::int32_t kind = kEnd;
  std::uint32_t number = 0;  ///< of the step, or of the item
  std::uint32_t count = 0;   ///< of messages
  // How far the load of a tile is; here because the thread that loads has few registers.
  std::int32_t row = 0;
  std::int32_t step = 0;      ///< rows of a box
  std::int32_t num_left = 0;  ///< boxes of the unit
  std::uint32_t bits = 0;     ///< of their tokens
};

/// The state of the producer; here because its thread has few registers.
struct ProducerState {
  StepInfo mask;          ///< the record's mask as if the q tile began at token 0
  std::int32_t item = 0;  ///< the item's number
  std::int32_t span = 0;  ///< its span
  std::int32_t groups_per_item = 0;
  std::int32_t k_tile = 0;        ///< the item's k tile
  std::int32_t group_begin = 0;   ///< the item's first head group
  std::int32_t record_begin = 0;  ///< the item's records
  std::int32_t record_end = 0;
  std::int32_t record = 0;
  std::int32_t group = 0;
  std::int32_t index = 0;  ///< the head group, counted from the item's first
  std::int32_t tile_begin = 0;
  std::int32_t full_begin = 0;
  std::int32_t full_end = 0;
  bool is_last = false;       ///< the record is the item's last
  bool is_sent = false;       ///< the item's info has been sent
  bool is_cut = false;        ///< the step's q tile has rows that nobody sees
  bool are_keys_cut = false;  ///< or the item's keys have
};

/// The semaphore waiter's message: a step may add its dQ.
struct alignas(16) AddInfo {
  std::int64_t semaphore = 0;  ///< index of DqOrder::semaphores, or kEndOfAdds
  std::int32_t is_first = 0;   ///< the sum is not cleared: it begins with this step's dQ
  std::int32_t is_last = 0;    ///< the sum is complete then, and the dQ converter's
  std::int32_t group = 0;      ///< head group
  std::int32_t q_tile = 0;
};
static_assert(sizeof(AddInfo) == 32);
inline constexpr std::int64_t kEndOfAdds = -1;  ///< semaphore of the message after the last step's

/// The semaphore signaller's message: a sum of dQ is complete.
struct ConvertInfo {
  std::int32_t group = 0;  ///< head group, or kEndOfConverts
  std::int32_t q_tile = 0;
};
inline constexpr std::int32_t kEndOfConverts = -1;  ///< group of the message after the last sum's

/// The state of the dQ converter; here because it has few registers. It counts quarters of all its
/// sums, one after the other.
struct ConverterState {
  std::uint32_t quarter = 0;             ///< the first one that is not written
  std::uint32_t num_loaded = 0;          ///< those that are there or on their way
  const std::uint8_t* source = nullptr;  ///< the sum of the last one loaded
};

/// Named barriers and who arrives.
/// | barrier          | arrivals                          | meaning                              |
/// |------------------|-----------------------------------|--------------------------------------|
/// | kDkvEpilogue + w | warpgroup w                       | w's V rows may be overwritten        |
/// | kSplits + w      | warpgroup w                       | a split's sum may be, or was, stored |
/// | kOwnDs + w       | warpgroup w                       | its dS is there                      |
/// | kExchange        | both warpgroups, with own rows    | sums may be, or were, stored         |
enum BackwardBarrier : int { kDkvEpilogue = 2, kSplits = 4, kOwnDs = 6, kExchange = 8 };

/// Steps whose dQ may be added and is not, at most.
inline constexpr int kAddStages = 4;

/// Items that the first CTA of a k tile has taken and the second has not, at most.
inline constexpr int kTicketStages = 2;

/// Complete sums that the dQ converter has not written, at most: an item may end many in a row.
inline constexpr int kConvertStages = 16;

/// A sum as the dQ converter reads it: quarters of four chunks, one after the other.
inline constexpr int kSumQuarters = 4;
inline constexpr int kQuarterStages = 3;
inline constexpr int kChunkBytes = 2048;
inline constexpr int kQuarterBytes = 4 * kChunkBytes;

template <BackwardConfig kC>
struct BackwardStorage {
  alignas(1024) std::uint8_t k[kC.k_bytes()];
  /// V, later the item's dK and dV on their way out.
  alignas(1024) std::uint8_t v[kC.v_stage_bytes()];
  alignas(1024) std::uint8_t q[kC.q_stages][kC.q_bytes()];
  alignas(1024) std::uint8_t dout[kC.dout_stages][kC.dout_bytes()];
  /// 16-bit scores as operands, 128-byte rows, one per key: score_stages of dS^T. Where warpgroups
  /// share keys, as many of P^T and of the other CTA's dS^T follow.
  alignas(1024) std::uint8_t scores[kC.score_buffers()][kC.score_bytes()];
  /// The columns of K of the other CTA's keys by which this CTA multiplies the other one's dS.
  alignas(kC.ctas() == 1 ? 16 : 1024) std::uint8_t peer_k[kC.ctas() == 1 ? 16 : kC.peer_k_bytes()];
  alignas(128) float lse_log2[kC.q_stages][kC.rows];
  alignas(128) float delta[kC.dout_stages][kC.rows];
  /// A step's info is overwritten step_stages() steps later: by then its Q buffer has been handed
  /// back and the dQ of the steps before has been added, so that neither consumers nor the
  /// semaphore waiter, who is ahead of them, read it any more.
  StepInfo steps[kC.step_stages()];
  ProducerState producer;
  ArrivalState arrivals;
  ItemInfo items[2];
  AddInfo adds[kAddStages];
  RingBarriers<kC.step_stages()> step_full;  ///< for the semaphore waiter, or those who load
  Ring<kAddStages> add_ring;                 ///< the step's dQ may be added / has been
  RingBarriers<kAddStages> added;            ///< both halves of the step's dQ
  /// dS of both warpgroups is there, dQ before it done; where they share keys: dS is there.
  RingBarriers<kC.score_stages> score_gradients_full;
  Ring<kC.q_stages> q_ring;
  Ring<kC.dout_stages> dout_ring;
  Ring<1> k_ring;
  Ring<1> v_ring;
  ConvertInfo converts[kConvertStages];
  Ring<kConvertStages> convert_ring;          ///< a sum is complete / its dq has been written
  RingBarriers<kQuarterStages> quarter_full;  ///< a quarter of a complete sum is there
  ConverterState converter;
  RingBarriers<kC.score_stages> probabilities_full;  ///< P is there, where warpgroups share keys
  RingBarriers<kC.score_stages> peer_score_gradients_full;  ///< the other CTA's dS is there
  /// The items, in the second CTA of a k tile, that the first has taken. `empty` is that of the
  /// first.
  Ring<kTicketStages> ticket_ring;
  std::int32_t tickets[kTicketStages];
  alignas(128) std::uint8_t
      quarters[kC.has_converter() ? kQuarterStages : 1][kC.has_converter() ? kQuarterBytes : 16];
  /// Both threads that load have done with a step's info, where they are told of steps.
  RingBarriers<kC.is(KernelForm::OwnRows) ? kC.step_stages() : 1> step_loaded;
  CutRequest cut;
  Ring<1> cut_ring;

  __device__ __forceinline__ void init_barriers() {
    constexpr int kConsumerWarps = 4 * kC.consumers * ptx::kArrivalsPerWarp;
    step_full.init(1);
    cut_ring.init(1);
    cut.count = 0;
    if constexpr (kC.is(KernelForm::OwnRows)) step_loaded.init(2);
    add_ring.init(1);
    added.init(kConsumerWarps);
    convert_ring.init(ptx::kArrivalsPerWarp);
    quarter_full.init(1);
    // Where they share keys, one warpgroup makes P and the other one dS.
    constexpr int kScoreWarps =
        kC.is(KernelForm::SharedKeys) ? kConsumerWarps / kC.consumers : kConsumerWarps;
    score_gradients_full.init(kScoreWarps);
    if constexpr (kC.is(KernelForm::SharedKeys)) {
      probabilities_full.init(kScoreWarps);
      peer_score_gradients_full.init(1);
      ticket_ring.init(1);
    }
    constexpr int kStepWarps = kConsumerWarps / kC.consumers * kC.step_readers();
    q_ring.init(kStepWarps);
    dout_ring.init(kStepWarps);
    k_ring.init(kConsumerWarps);
    v_ring.init(kConsumerWarps);
    for (AddInfo& add : adds) add = {};
  }
};

}  // namespace magi::sm90
