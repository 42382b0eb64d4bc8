// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/item_walk.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace magi::test {
namespace {

/// The items of a list in order, by loops instead of divisions.
std::vector<BackwardItem> items_of(const BackwardList& list) {
  std::vector<BackwardItem> items;
  const std::int32_t heads_kv = list.problem.heads_kv;
  const auto visit_block = [&](BackwardItem item, const TileSpan& span, std::int32_t tile_begin) {
    const std::int32_t head_begin = item.kv_head;
    const std::int32_t head_end = std::min(head_begin + span.section_heads, heads_kv);
    const std::int32_t tile_end = std::min(tile_begin + span.block_tiles, span.num_tiles);
    for (item.split = 0; item.split < span.num_splits; ++item.split) {
      for (std::int32_t tile = tile_begin; tile < tile_end; ++tile) {
        item.tile = span.tile_begin + tile;
        for (item.kv_head = head_begin; item.kv_head < head_end; ++item.kv_head) {
          item.num_beside = head_end - item.kv_head;
          items.push_back(item);
        }
      }
    }
  };
  for (std::size_t number = 0; number < list.spans.size(); ++number) {
    const TileSpan& span = list.spans[number];
    for (std::int32_t head = 0; head < heads_kv; head += span.section_heads) {
      for (std::int32_t tile = 0; tile < span.num_tiles; tile += span.block_tiles) {
        visit_block({.span = std::int32_t(number), .kv_head = head}, span, tile);
      }
    }
  }
  return items;
}

/// Walks the items in order: every head group of a k tile once, in the order of the tiles for each
/// group, the splits of a kv head in theirs, and each slot to one of them at a time.
class ItemWalk {
 public:
  explicit ItemWalk(const BackwardList& list)
      : list_(list),
        next_tile_(std::size_t(list.head_groups), -1),
        next_split_(list.tiles.size() * std::size_t(list.problem.heads_kv)),
        users_(std::size_t(list.num_slots()), -1),
        walked_(list.tiles.size() * std::size_t(list.head_groups)) {
    check_spans();
    std::int64_t index = 0;
    for (const BackwardItem& item : items_of(list)) {
      is_whole_ &= item == list.item(index++);
      if (!is_whole_) return;
      walk(item);
    }
    is_whole_ &= index == list.num_items();
  }

  bool is_whole() const {
    return is_whole_ && std::all_of(walked_.begin(), walked_.end(), [](char is) { return is; });
  }

 private:
  void check_spans() {
    is_whole_ &= std::ssize(list_.spans) <= kMaxSpans;
    std::int32_t tile = 0;
    std::int32_t item = 0;
    for (const TileSpan& span : list_.spans) {
      is_whole_ &= span.tile_begin == tile && span.num_tiles > 0;
      is_whole_ &= span.item_begin == item;
      is_whole_ &= span.section_heads >= 1;
      is_whole_ &= span.num_splits == 1 || span.slot_heads >= span.section_heads;
      is_whole_ &= span.block_tiles >= 1 && span.block_tiles <= span.num_tiles;
      is_whole_ &= span.slot_heads <= list_.problem.heads_kv;
      tile += span.num_tiles;
      item += span.num_tiles * span.num_splits * list_.problem.heads_kv;
      is_whole_ &= span.item_end == item;
    }
    is_whole_ &= tile == std::ssize(list_.tiles);
  }

  void walk(const BackwardItem& item) {
    const TileSpan& span = list_.spans[std::size_t(item.span)];
    is_whole_ &= item.tile >= span.tile_begin;
    is_whole_ &= item.tile < span.tile_begin + span.num_tiles;
    const std::int32_t first = (item.kv_head * span.num_splits + item.split) * span.groups_per_item;
    for (std::int32_t group = first; group < first + span.groups_per_item; ++group) {
      std::int32_t& before = next_tile_[std::size_t(group)];
      is_whole_ &= item.tile > before;
      before = item.tile;
      char& is_walked = walked_[std::size_t(item.tile * list_.head_groups + group)];
      is_whole_ &= is_walked == 0;
      is_walked = 1;
    }
    if (span.num_splits > 1) take_slot(item, span);
  }

  void take_slot(const BackwardItem& item, const TileSpan& span) {
    const std::int32_t owner = item.tile * list_.problem.heads_kv + item.kv_head;
    is_whole_ &= item.split == next_split_[std::size_t(owner)]++;
    const SlotUser present{item.tile, item.kv_head};
    std::int32_t& user = users_[std::size_t(slot_of(span, present))];
    if (item.split == 0) {
      const SlotUser before = user_before(span, present);
      const std::int32_t tile = before.tile;
      is_whole_ &= user == (tile < 0 ? -1 : tile * list_.problem.heads_kv + before.kv_head);
      if (!is_whole_) return;
      // Who has been awaited walks, and has all its splits before this item.
      if (user >= 0) is_whole_ &= next_split_[std::size_t(user)] == span.num_splits;
      if (user >= 0)
        is_whole_ &=
            list_.tiles[std::size_t(tile)].record_begin < list_.tiles[std::size_t(tile)].record_end;
      user = owner;
    }
    is_whole_ &= user == owner;
  }

  const BackwardList& list_;
  std::vector<std::int32_t> next_tile_;   ///< of a head group, the last one walked
  std::vector<std::int32_t> next_split_;  ///< of a tile and kv head
  std::vector<std::int32_t> users_;       ///< of a slot: tile and kv head
  std::vector<char> walked_;
  bool is_whole_ = true;
};

}  // namespace

bool walks_everything_once(const BackwardList& list) { return ItemWalk(list).is_whole(); }

}  // namespace magi::test
