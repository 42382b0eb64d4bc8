// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/math.hpp"
#include "comm/engine/doorbell.hpp"
#include "magi/comm.hpp"

// What the ranks of one machine share. A region starts with the control part: one GroupBlock, a
// RankBlock per rank, a ChannelBlock and a small first ring per ordered pair of ranks. Larger rings
// follow behind it. Everything starts as zero, which is a valid state of every field.
namespace magi::comm {

inline constexpr std::uint64_t kRegionMagic = 0x6d616769636f6d31;  // "magicom1"
inline constexpr std::size_t kAnnouncements = 64;
inline constexpr std::size_t kFirstSlots = 2;
inline constexpr std::size_t kFirstSlotBytes = 2048;
inline constexpr std::size_t kFailureTextBytes = 1024;

enum class RankState : std::uint32_t {
  Running = 0,
  Closed = 1,  ///< close_sync came to its end
  Gone = 2,    ///< the communicator was destroyed without close_sync
};

enum class FailureState : std::uint32_t { None = 0, Writing = 1, Set = 2 };

/// Why the group ended; the first rank that fails writes it, all others read it.
struct FailureBlock {
  std::atomic<FailureState> state;
  std::int32_t kind;
  std::int32_t reporter;
  std::array<char, kFailureTextBytes> text;
};

struct GroupBlock {
  std::uint64_t magic;
  std::uint64_t nonce;
  std::atomic<std::uint64_t> used_bytes;  ///< where the next ring may begin
  FailureBlock failure;
};

/// "I am in exchange `sequence` with this plan": lets every pair of ranks compare calls before
/// data moves, also pairs that exchange no rows. Slots are reused; `sequence` 0 means in change.
struct Announcement {
  std::atomic<std::uint64_t> sequence;
  std::atomic<std::uint64_t> plan_digest;
  std::atomic<std::uint64_t> kind_and_stage;
  std::atomic<std::uint64_t> options;
};

struct alignas(64) RankBlock {
  Doorbell bell;
  std::atomic<RankState> state;
  std::atomic<std::int32_t> awaited;  ///< 1 + the rank that it waits for; 0: none
  alignas(64) std::array<Announcement, kAnnouncements> announcements;
};

/// Packets written and read between one ordered pair of ranks.
struct ChannelBlock {
  alignas(64) std::atomic<std::uint64_t> written;   ///< only the sender stores
  alignas(64) std::atomic<std::uint64_t> consumed;  ///< only the receiver stores
};

/// The exchange that a packet belongs to: the first numbers are those of ExchangeKind.
enum class CallKind : std::uint32_t { AllGather = 16, Close = 17 };
constexpr CallKind call_kind(ExchangeKind kind) { return static_cast<CallKind>(kind); }

/// The header at the start of every slot. `offset` counts payload bytes of this exchange before
/// this packet.
struct alignas(64) PacketHeader {
  std::uint64_t sequence = 0;
  std::uint64_t plan_digest = 0;
  std::uint64_t content = 0;
  std::uint64_t total_bytes = 0;
  std::uint64_t offset = 0;
  std::uint64_t options = 0;
  CallKind kind = call_kind(ExchangeKind::Other);
  std::int32_t stage = 0;
  std::uint32_t payload_bytes = 0;
  std::uint32_t moves_ring = 0;  ///< 1: the payload is a RingPlace, where the next packet lies
};
static_assert(sizeof(PacketHeader) == 64);

/// A ring of equal slots, each a header and payload.
struct RingPlace {
  std::uint64_t offset = 0;  ///< of the region
  std::uint64_t slot_bytes = 0;
  std::uint64_t num_slots = 0;
  std::uint64_t num_bytes() const { return slot_bytes * num_slots; }
};

/// Offsets of the control part, from one list of regions.
class ControlLayout {
 public:
  explicit ControlLayout(std::int32_t num_ranks)
      : num_ranks_(static_cast<std::size_t>(num_ranks)),
        ranks_(align(sizeof(GroupBlock))),
        channels_(align(ranks_ + num_ranks_ * sizeof(RankBlock))),
        rings_(align(channels_ + num_ranks_ * num_ranks_ * sizeof(ChannelBlock))),
        num_bytes_(align(rings_ + num_ranks_ * num_ranks_ * kFirstSlots * kFirstSlotBytes)) {}

  std::size_t num_bytes() const { return num_bytes_; }
  GroupBlock& group(std::byte* base) const { return *reinterpret_cast<GroupBlock*>(base); }
  RankBlock& rank(std::byte* base, std::int32_t rank) const {
    return *reinterpret_cast<RankBlock*>(base + ranks_ + index(rank) * sizeof(RankBlock));
  }
  ChannelBlock& channel(std::byte* base, std::int32_t from, std::int32_t to) const {
    return *reinterpret_cast<ChannelBlock*>(base + channels_ +
                                            pair(from, to) * sizeof(ChannelBlock));
  }
  RingPlace first_ring(std::int32_t from, std::int32_t to) const {
    return {.offset = rings_ + pair(from, to) * kFirstSlots * kFirstSlotBytes,
            .slot_bytes = kFirstSlotBytes,
            .num_slots = kFirstSlots};
  }

 private:
  static constexpr std::size_t kAlignment = 4096;
  static std::size_t align(std::size_t offset) { return align_up(offset, kAlignment); }
  static std::size_t index(std::int32_t rank) { return static_cast<std::size_t>(rank); }
  std::size_t pair(std::int32_t from, std::int32_t to) const {
    return index(from) * num_ranks_ + index(to);
  }

  std::size_t num_ranks_;
  std::size_t ranks_;
  std::size_t channels_;
  std::size_t rings_;
  std::size_t num_bytes_;
};

}  // namespace magi::comm
