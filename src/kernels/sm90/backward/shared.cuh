// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/sm90/arrivals.cuh"
#include "kernels/sm90/backward/config.hpp"
#include "kernels/sm90/ring.cuh"

namespace magi::sm90 {

/// The producer's message about one q tile of one record. If the step is masked, the tokens
/// [max(q_low, r + low), min(q_high, r + high)) of the q tile see the key in row r of the k tile if
/// key_low <= r < key_high, else none does.
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
  kEndOfSteps = 4,  ///< there are no more steps
  kNoRows = 8,      ///< OwnRows: the item has no more steps for this step's warpgroup
};

/// The producer's message about one item.
struct alignas(16) ItemInfo {
  std::int32_t flags = 0;
  std::int32_t key_begin = 0;
  std::int32_t num_keys = 0;
  std::int32_t kv_head = 0;
  std::int32_t slot = 0;               ///< the place where splits of the k tile are summed
  std::int32_t semaphore = 0;          ///< index of split_semaphores for the first warpgroup
  std::int32_t awaited_semaphore = 0;  ///< the slot is free once this one, unless -1,
  std::int32_t awaited_value = 0;      ///< has this value
  std::int32_t first_segment = 0;      ///< of KeyGradients::destinations: the first key's
  std::int32_t padding[7] = {};        ///< NOTE: with 48 bytes ptxas spills in the consumers' step
};
static_assert(sizeof(ItemInfo) == 64);

enum ItemFlag : std::int32_t {
  kHasSteps = 1,
  kEndOfItems = 2,  ///< there are no more items
  kFirstSplit = 4,
  kLastSplit = 8,
};

/// The producer's request to load a tile with rows that nobody sees, which another thread does.
struct CutRequest {
  enum Kind : std::int32_t { kRows, kKeys, kValues, kEnd };
  std::int32_t kind = kEnd;
  std::uint32_t number = 0;  ///< of the step, or of the item
  std::uint32_t count = 0;   ///< of messages
  // The progress of a tile's load; in shared memory, because the loading thread has few registers.
  std::int32_t row = 0;
  std::int32_t step = 0;      ///< rows of a box
  std::int32_t num_left = 0;  ///< boxes of the unit
  std::uint32_t bits = 0;     ///< of their tokens
};

/// The state of the producer; in shared memory, because its thread has few registers.
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
  std::int32_t is_first = 0;   ///< the sum is not cleared: this step's dQ is stored there
  std::int32_t is_last = 0;    ///< the step completes the sum, and the dQ converter takes it
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

/// The state of the dQ converter; in shared memory, because it has few registers. It counts
/// quarters over all its sums.
struct ConverterState {
  std::uint32_t quarter = 0;             ///< the first quarter that is not written
  std::uint32_t num_loaded = 0;          ///< quarters whose loads have been issued
  const std::uint8_t* source = nullptr;  ///< the sum of the last of these
};

/// Named barriers and who arrives.
/// | barrier          | arrivals                          | meaning                              |
/// |------------------|-----------------------------------|--------------------------------------|
/// | kDkvEpilogue + w | warpgroup w                       | w's V rows may be overwritten        |
/// | kSplits + w      | warpgroup w                       | a split's sum may be, or was, stored |
/// | kOwnDs + w       | warpgroup w                       | it has stored its dS                 |
/// | kExchange        | both warpgroups, OwnRows          | sums may be, or were, stored         |
enum BackwardBarrier : int { kDkvEpilogue = 2, kSplits = 4, kOwnDs = 6, kExchange = 8 };

/// The most steps that may add their dQ and have not done so.
inline constexpr int kAddStages = 4;

/// The most items that the first CTA of a k tile has taken and the second has not.
inline constexpr int kTicketStages = 2;

/// The most complete sums that the dQ converter has not written; an item may complete many.
inline constexpr int kConvertStages = 16;

/// The dQ converter reads a sum in quarters of four chunks, one after the other.
inline constexpr int kSumQuarters = 4;
inline constexpr int kQuarterStages = 3;
inline constexpr int kChunkBytes = 2048;
inline constexpr int kQuarterBytes = 4 * kChunkBytes;

template <BackwardConfig kC>
struct BackwardStorage {
  alignas(1024) std::uint8_t k[kC.k_bytes()];
  /// V; when the item ends, the epilogue stages its dK and dV here.
  alignas(1024) std::uint8_t v[kC.v_stage_bytes()];
  alignas(1024) std::uint8_t q[kC.q_stages][kC.q_bytes()];
  alignas(1024) std::uint8_t dout[kC.dout_stages][kC.dout_bytes()];
  /// 16-bit scores as operands, 128-byte rows, one per key: score_stages of dS^T. With SharedKeys,
  /// as many of P^T and of the other CTA's dS^T follow.
  alignas(1024) std::uint8_t scores[kC.score_buffers()][kC.score_bytes()];
  /// Columns of the other CTA's K, by which this CTA multiplies the other CTA's dS.
  alignas(kC.ctas() == 1 ? 16 : 1024) std::uint8_t peer_k[kC.ctas() == 1 ? 16 : kC.peer_k_bytes()];
  alignas(128) float lse_log2[kC.q_stages][kC.rows];
  alignas(128) float delta[kC.dout_stages][kC.rows];
  /// A step's info is overwritten step_stages() steps later. By then its Q buffer has been released
  /// and the dQ of earlier steps has been added, so neither consumers nor the semaphore waiter,
  /// which is ahead of them, still read it.
  StepInfo steps[kC.step_stages()];
  ProducerState producer;
  ArrivalState arrivals;
  ItemInfo items[2];
  AddInfo adds[kAddStages];
  RingBarriers<kC.step_stages()> step_full;  ///< the semaphore waiter, or loaders, wait for it
  Ring<kAddStages> add_ring;                 ///< the step's dQ may be added / has been
  RingBarriers<kAddStages> added;            ///< both halves of the step's dQ
  /// Both warpgroups have stored dS and completed the dQ before; SharedKeys: dS has been stored.
  RingBarriers<kC.score_stages> score_gradients_full;
  Ring<kC.q_stages> q_ring;
  Ring<kC.dout_stages> dout_ring;
  Ring<1> k_ring;
  Ring<1> v_ring;
  ConvertInfo converts[kConvertStages];
  Ring<kConvertStages> convert_ring;          ///< a sum is complete / its dq has been written
  RingBarriers<kQuarterStages> quarter_full;  ///< a quarter of a complete sum has been loaded
  ConverterState converter;
  RingBarriers<kC.score_stages> probabilities_full;         ///< SharedKeys: P has been stored
  RingBarriers<kC.score_stages> peer_score_gradients_full;  ///< the other CTA's dS has arrived
  /// Items that the first CTA of a k tile has taken and sent to the second. `empty` is used in the
  /// first CTA, the others in the second.
  Ring<kTicketStages> ticket_ring;
  std::int32_t tickets[kTicketStages];
  alignas(128) std::uint8_t
      quarters[kC.has_converter() ? kQuarterStages : 1][kC.has_converter() ? kQuarterBytes : 16];
  /// OwnRows: both loading threads no longer read a step's info.
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
    // With SharedKeys, one warpgroup makes P and the other dS.
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
