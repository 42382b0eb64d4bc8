// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/host_device.hpp"

// Maps a place in a launch to an item and its work: one function per direction, which kernels, the
// cost of schedules and tests share. Items are numbered in 31 bits, so that unsigned 32-bit
// arithmetic is exact.
namespace magi {

/// Items of a launch. A CTA that finds no more draws a number after the last, in 31 bits too.
inline constexpr std::int64_t kMaxItems = (std::int64_t{1} << 31) - 1025;

/// The items of a forward launch, in sections of head groups whose K and V fit the cache together.
/// In a section each work (a q tile, or a split of one) is handed out for all its head groups
/// before the next work. Works that wait for in-flight keys follow all others, in sections of their
/// own, whose heads arrive together.
struct ForwardOrder {
  std::int32_t num_works = 0;
  std::int32_t head_groups = 0;
  std::int32_t groups_per_section = 0;   ///< the last section may have fewer
  std::int32_t num_in_flight_works = 0;  ///< the last of num_works
  std::int32_t in_flight_groups_per_section = 0;
};

struct ForwardItem {
  std::int32_t work = 0;  ///< in ForwardList::tiles
  std::int32_t head_group = 0;
};

/// The item at place `index`, which is below num_works * head_groups.
MAGI_HOST_DEVICE ForwardItem forward_item(const ForwardOrder& order, std::uint32_t index) {
  std::int32_t num_works = order.num_works - order.num_in_flight_works;
  std::int32_t first_work = 0;
  auto width = static_cast<std::uint32_t>(order.groups_per_section);
  const auto early_items = static_cast<std::uint32_t>(num_works * order.head_groups);
  if (index >= early_items) {
    index -= early_items;
    first_work = num_works;
    num_works = order.num_in_flight_works;
    width = static_cast<std::uint32_t>(order.in_flight_groups_per_section);
  }
  const std::uint32_t section_items = width * static_cast<std::uint32_t>(num_works);
  const std::uint32_t section = index / section_items;
  const std::uint32_t first_group = section * width;
  const std::uint32_t rest = static_cast<std::uint32_t>(order.head_groups) - first_group;
  const std::uint32_t groups = width < rest ? width : rest;
  const std::uint32_t inside = index - section * section_items;
  return {first_work + static_cast<std::int32_t>(inside / groups),
          static_cast<std::int32_t>(first_group + inside % groups)};
}

/// Neighbouring k tiles of a backward list whose items are split and handed out alike: nested
/// loops, from the outside in, over sections of kv heads, blocks of k tiles, splits, k tiles, and
/// kv heads of the section. So items that run at one time work for few heads, whose rows stay in
/// the cache.
///
/// The splits of a k tile and kv head are a chain: each adds the sum of those before it, and leaves
/// its sum in a slot or, as the last, writes the result. A slot serves k tiles `block_tiles` apart
/// and kv heads `slot_heads` apart: the first split that uses a slot again waits for the last split
/// of the user before. k tiles without records are in spans of their own, of one split.
struct TileSpan {
  std::int32_t item_begin = 0;
  std::int32_t item_end = 0;
  std::int32_t tile_begin = 0;  ///< in BackwardList::tiles
  std::int32_t num_tiles = 0;
  std::int32_t num_splits = 1;       ///< items that share a k tile of a kv head
  std::int32_t groups_per_item = 1;  ///< head groups that an item walks
  std::int32_t section_heads = 1;    ///< kv heads of a section; the last may have fewer
  std::int32_t block_tiles = 1;      ///< k tiles of a block; the last may have fewer
  std::int32_t slot_begin = 0;       ///< the first slot, if there are splits
  std::int32_t slot_heads = 0;       ///< kv heads with slots of their own

  friend bool operator==(const TileSpan&, const TileSpan&) = default;
};
inline constexpr int kMaxSpans = 16;  ///< of a list

struct BackwardItem {
  std::int32_t span = 0;
  std::int32_t tile = 0;  ///< in BackwardList::tiles
  std::int32_t kv_head = 0;
  std::int32_t split = 0;
  std::int32_t num_beside = 1;  ///< it and the next ones that differ in the kv head alone

  friend bool operator==(const BackwardItem&, const BackwardItem&) = default;
};

/// Returns the item at place `index`, which is below item_end of the last span. The search for its
/// span begins at `first_span`, whose item_begin is at most `index`.
MAGI_HOST_DEVICE BackwardItem backward_item(const TileSpan* spans, std::int32_t heads_kv,
                                            std::uint32_t index, std::int32_t first_span = 0) {
  std::int32_t number = first_span;
  while (index >= static_cast<std::uint32_t>(spans[number].item_end)) ++number;
  const TileSpan& span = spans[number];
  const auto width = static_cast<std::uint32_t>(span.section_heads);
  const auto height = static_cast<std::uint32_t>(span.num_tiles);
  const auto block = static_cast<std::uint32_t>(span.block_tiles);
  const auto splits = static_cast<std::uint32_t>(span.num_splits);
  index -= static_cast<std::uint32_t>(span.item_begin);
  const std::uint32_t section_items = width * splits * height;
  const std::uint32_t first_head = index / section_items * width;
  index %= section_items;
  const std::uint32_t heads_left = static_cast<std::uint32_t>(heads_kv) - first_head;
  const std::uint32_t heads = width < heads_left ? width : heads_left;
  const std::uint32_t block_items = heads * splits * block;
  const std::uint32_t first_tile = index / block_items * block;
  index %= block_items;
  const std::uint32_t tiles_left = height - first_tile;
  const std::uint32_t split_items = heads * (block < tiles_left ? block : tiles_left);
  const std::uint32_t split = index / split_items;
  index %= split_items;
  const std::uint32_t head = index % heads;
  return {number, span.tile_begin + static_cast<std::int32_t>(first_tile + index / heads),
          static_cast<std::int32_t>(first_head + head), static_cast<std::int32_t>(split),
          static_cast<std::int32_t>(heads - head)};
}

/// A slot serves the splits of one user at a time: a k tile of the list and a kv head.
struct SlotUser {
  std::int32_t tile = -1;  ///< -1: none
  std::int32_t kv_head = 0;
};

/// The slot of a k tile of the span and a kv head.
MAGI_HOST_DEVICE std::int32_t slot_of(const TileSpan& span, SlotUser user) {
  const std::int32_t tile = user.tile - span.tile_begin;
  return span.slot_begin + user.kv_head % span.slot_heads * span.block_tiles +
         tile % span.block_tiles;
}

/// Returns the user of the slot before this one: the k tile one block earlier or, in the first
/// block, the last such k tile of an earlier kv head.
MAGI_HOST_DEVICE SlotUser user_before(const TileSpan& span, SlotUser user) {
  const std::int32_t tile = user.tile - span.tile_begin;
  const std::int32_t block = span.block_tiles;
  if (tile >= block) return {user.tile - block, user.kv_head};
  if (user.kv_head < span.slot_heads) return {};
  const std::int32_t last = (span.num_tiles - 1 - tile) / block * block;
  return {user.tile + last, user.kv_head - span.slot_heads};
}

}  // namespace magi
