// SPDX-License-Identifier: Apache-2.0
#include "comm/engine/channel.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/math.hpp"
#include "magi/error.hpp"

namespace magi::comm {
namespace {

// Large enough to hide the cost of a packet, small enough to stay in a core's L2 cache.
constexpr std::size_t kSlotBytes = std::size_t{128} << 10;
constexpr std::size_t kMinSlots = 4;

RingPlace ring_for(std::size_t num_bytes) {
  const std::size_t payload = kSlotBytes - sizeof(PacketHeader);
  const std::size_t num_slots = std::max(kMinSlots, ceil_div(num_bytes, payload));
  if (num_bytes >= kMinSlots * payload) return {.slot_bytes = kSlotBytes, .num_slots = num_slots};
  const std::size_t slot = ceil_div(num_bytes, kMinSlots) + sizeof(PacketHeader);
  return {.slot_bytes = align_up(slot, sizeof(PacketHeader)), .num_slots = kMinSlots};
}

}  // namespace

Outbox::Outbox(std::shared_ptr<SharedRegion> region, std::byte* base, const ControlLayout& layout,
               std::int32_t from, std::int32_t to)
    : region_(std::move(region)),
      group_(layout.group(base)),
      channel_(layout.channel(base, from, to)),
      control_bytes_(layout.num_bytes()),
      ring_(layout.first_ring(from, to), base + layout.first_ring(from, to).offset, 0) {}

bool Outbox::has_room() const {
  // Packets still unread in an earlier ring take no slot of this one.
  const std::uint64_t consumed = channel_.consumed.load(std::memory_order_acquire);
  return written_ - std::max(consumed, ring_.first_count()) < ring_.place().num_slots;
}

void Outbox::publish(const PacketHeader& header) {
  std::memcpy(ring_.slot(written_), &header, sizeof(header));
  channel_.written.store(++written_, std::memory_order_release);
}

bool Outbox::grow(std::size_t num_bytes) {
  if (!may_grow_) return false;
  RingPlace place = ring_for(num_bytes);
  const std::size_t extent = align_up(place.num_bytes(), page_bytes());
  place.offset = group_.used_bytes.fetch_add(extent, std::memory_order_relaxed);
  may_grow_ = region_->reserve(place.offset, extent);
  if (!may_grow_) return false;
  std::byte* data = region_->map(place.offset, extent);
  const RingPlace old = ring_.place();
  std::memcpy(payload(), &place, sizeof(place));
  publish({.payload_bytes = sizeof(place), .moves_ring = 1});
  ring_ = RingView(place, data, written_);
  if (old.offset >= control_bytes_) region_->unmap(old.offset);
  return true;
}

Inbox::Inbox(std::shared_ptr<SharedRegion> region, std::byte* base, const ControlLayout& layout,
             std::int32_t from, std::int32_t to)
    : region_(std::move(region)),
      channel_(layout.channel(base, from, to)),
      control_bytes_(layout.num_bytes()),
      ring_(layout.first_ring(from, to), base + layout.first_ring(from, to).offset, 0) {}

const PacketHeader* Inbox::peek() {
  while (channel_.written.load(std::memory_order_acquire) > consumed_) {
    const auto* header = reinterpret_cast<const PacketHeader*>(ring_.slot(consumed_));
    if (header->moves_ring == 0) return header;
    RingPlace place;
    std::memcpy(&place, payload(), sizeof(place));
    follow(place);
  }
  return nullptr;
}

void Inbox::release() { channel_.consumed.store(++consumed_, std::memory_order_release); }

void Inbox::follow(const RingPlace& place) {
  const std::size_t extent = align_up(place.num_bytes(), page_bytes());
  if (place.slot_bytes <= sizeof(PacketHeader) || place.num_slots == 0 ||
      place.offset + extent > region_->file_bytes()) {
    throw CommError("a peer's ring lies outside the shared memory", CommFailure::System);
  }
  std::byte* data = region_->map(place.offset, extent);
  const RingPlace old = ring_.place();
  release();
  ring_ = RingView(place, data, consumed_);
  // The sender left the old ring before it wrote the packet that leads here.
  if (old.offset >= control_bytes_) {
    region_->unmap(old.offset);
    region_->discard(old.offset, align_up(old.num_bytes(), page_bytes()));
  }
}

}  // namespace magi::comm
