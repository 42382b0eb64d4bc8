// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "comm/engine/layout.hpp"
#include "comm/engine/shared_region.hpp"

namespace magi::comm {

/// A ring as one side sees it: where slot number `count` lies.
class RingView {
 public:
  RingView(RingPlace place, std::byte* data, std::uint64_t first_count)
      : place_(place), data_(data), first_count_(first_count) {}

  std::byte* slot(std::uint64_t count) const {
    return data_ + ((count - first_count_) % place_.num_slots) * place_.slot_bytes;
  }
  std::size_t payload_capacity() const { return place_.slot_bytes - sizeof(PacketHeader); }
  std::size_t capacity() const { return payload_capacity() * place_.num_slots; }
  std::uint64_t first_count() const { return first_count_; }
  const RingPlace& place() const { return place_; }

 private:
  RingPlace place_;
  std::byte* data_;
  std::uint64_t first_count_;  ///< packets written to the channel before this ring
};

/// The sending side of an ordered pair: fills slots in order, never blocks.
class Outbox {
 public:
  /// `base` is the mapped control part.
  Outbox(std::shared_ptr<SharedRegion> region, std::byte* base, const ControlLayout& layout,
         std::int32_t from, std::int32_t to);

  bool has_room() const;
  std::size_t payload_capacity() const { return ring_.payload_capacity(); }
  std::size_t capacity() const { return ring_.capacity(); }
  /// Gives the place of the next packet's payload; has_room() must hold.
  std::byte* payload() { return ring_.slot(written_) + sizeof(PacketHeader); }
  void publish(const PacketHeader& header);
  /// Goes on in a ring of at least `num_bytes`, in order with the packets; has_room() must hold.
  /// False, and nothing changed, when the machine has no memory for it.
  bool grow(std::size_t num_bytes);

 private:
  std::shared_ptr<SharedRegion> region_;
  GroupBlock& group_;
  ChannelBlock& channel_;
  std::size_t control_bytes_;
  std::uint64_t written_ = 0;
  bool may_grow_ = true;  ///< until the machine refuses once
  RingView ring_;
};

/// The receiving side: sees packets in the order sent.
class Inbox {
 public:
  Inbox(std::shared_ptr<SharedRegion> region, std::byte* base, const ControlLayout& layout,
        std::int32_t from, std::int32_t to);

  /// The oldest packet not released, or nullptr. Follows the sender to a larger ring.
  const PacketHeader* peek();
  const std::byte* payload() const { return ring_.slot(consumed_) + sizeof(PacketHeader); }
  std::size_t payload_capacity() const { return ring_.payload_capacity(); }
  void release();

 private:
  void follow(const RingPlace& place);

  std::shared_ptr<SharedRegion> region_;
  ChannelBlock& channel_;
  std::size_t control_bytes_;
  std::uint64_t consumed_ = 0;
  RingView ring_;
};

}  // namespace magi::comm
