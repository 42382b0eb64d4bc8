// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/expand_backward_list.hpp"

#include <algorithm>
#include <bit>
#include <set>
#include <vector>

#include "kernels/schedule/host/query_run.hpp"

namespace magi::test {
namespace {

/// What kernels that walk the list would do, and whether its additions to dQ are in order.
class Expansion {
 public:
  explicit Expansion(const BackwardList& list)
      : list_(list),
        pairs_(std::size_t(list.problem.rows_q) * std::size_t(list.problem.rows_k)),
        key_owners_(std::size_t(list.problem.rows_k)),
        next_value_(std::size_t(list.num_q_tiles() + list.num_components)),
        writers_(std::size_t(list.problem.rows_q), -1),
        components_(std::size_t(list.num_q_tiles())),
        semaphores_(std::size_t(list.num_q_tiles())) {
    for (const KeyTile& work : list.tiles) walk(work);
  }

  bool is_of(const Mask& mask) const {
    const bool is_owned_once =
        std::all_of(key_owners_.begin(), key_owners_.end(), [](int owners) { return owners == 1; });
    return is_whole_ && is_owned_once && pairs_ == expand(mask) &&
           components() == list_.tile_components && semaphores() == list_.tile_semaphores &&
           has_right_ends();
  }

 private:
  /// Whether each sum that is not left has ended for all its components, and no other.
  bool has_right_ends() const {
    for (std::int32_t tile = 0; tile < list_.num_q_tiles(); ++tile) {
      const bool is_ended = list_.is_converting && !is_left(list_, tile * list_.tile_tokens);
      const std::set<std::int32_t>& components = components_[std::size_t(tile)];
      if (is_ended && components.empty()) return false;
      for (const std::int32_t component : components) {
        if ((next_value_[std::size_t(tile + component)] < 0) != is_ended) return false;
      }
    }
    return true;
  }

  void walk(const KeyTile& work) {
    for (std::int32_t key = work.key_begin; key < work.key_end; ++key) {
      ++key_owners_[std::size_t(key)];
    }
    is_whole_ &= work.key_begin < work.key_end;
    is_whole_ &= work.key_end - work.key_begin <= list_.shape.keys;
    for (std::int32_t i = work.record_begin; i < work.record_end; ++i) {
      walk_record(work, list_.records[std::size_t(i)]);
    }
  }

  void walk_record(const KeyTile& work, const KeyRecord& record) {
    const int shift = std::countr_zero(std::uint32_t(list_.tile_tokens));
    const QueryRun run = query_run(record.band, work.key_begin, list_.shape.keys, shift);
    is_whole_ &= record.band.k0 >= work.key_begin && record.band.k1 <= work.key_end;
    for (std::int32_t tile = run.tile_begin; tile < run.tile_end; ++tile) {
      const SemaphoreRun at = run_at(record, tile);
      is_whole_ &= at.component >= 0 && at.component < list_.num_components;
      if (!is_whole_) return;
      std::int32_t& next = next_value_[std::size_t(tile + at.component)];
      is_whole_ &= at.value == next;
      // After the last one nobody adds.
      next = at.is_last != 0 ? -1 : next + 1;
      components_[std::size_t(tile)].insert(at.component);
      ++semaphores_[std::size_t(tile)].num_additions;
      const bool is_full = tile >= run.full_begin && tile < run.full_end;
      count(work, record.band, tile, is_full);
      take_rows(record.band, tile, at.component);
    }
  }

  SemaphoreRun run_at(const KeyRecord& record, std::int32_t tile) const {
    SemaphoreRun found{.value = -1, .component = -1};
    for (std::int32_t i = record.run_begin; i < record.run_end; ++i) {
      const SemaphoreRun& run = list_.semaphore_runs[std::size_t(i)];
      if (run.q_tile <= tile) found = run;
    }
    return found;
  }

  /// No row may be written by two components.
  void take_rows(const BandSlice& band, std::int32_t tile, std::int32_t component) {
    const std::int32_t begin = tile * list_.tile_tokens;
    for (std::int32_t row = std::max(begin, band.q0);
         row < std::min(begin + list_.tile_tokens, band.q1); ++row) {
      std::int32_t& writer = writers_[std::size_t(row)];
      is_whole_ &= writer < 0 || writer == component;
      writer = component;
    }
  }

  std::vector<std::int32_t> components() const {
    std::vector<std::int32_t> counts;
    for (const auto& tile : components_) counts.push_back(std::int32_t(tile.size()));
    return counts;
  }

  std::vector<TileSemaphores> semaphores() const {
    std::vector<TileSemaphores> found = semaphores_;
    for (std::size_t tile = 0; tile < found.size(); ++tile) {
      const std::set<std::int32_t>& components = components_[tile];
      if (!components.empty()) found[tile].begin = std::int32_t(tile) + *components.begin();
    }
    return found;
  }

  void count(const KeyTile& work, const BandSlice& band, std::int32_t tile, bool is_full) {
    const std::int32_t begin = tile * list_.tile_tokens;
    const std::int32_t end = begin + list_.tile_tokens;
    if (is_full &&
        (end > list_.problem.rows_q || work.key_end - work.key_begin != list_.shape.keys)) {
      is_whole_ = false;
    }
    for (std::int32_t row = begin; row < std::min(end, list_.problem.rows_q); ++row) {
      const Range seen = visible_keys(band, row);
      for (std::int32_t key = work.key_begin; key < work.key_end; ++key) {
        const bool is_counted = is_full || (key >= seen.begin && key < seen.end);
        if (is_counted) ++pair(row, key);
      }
    }
  }

  std::uint16_t& pair(std::int32_t row, std::int32_t key) {
    return pairs_[std::size_t(row) * std::size_t(list_.problem.rows_k) + std::size_t(key)];
  }

  const BackwardList& list_;
  std::vector<std::uint16_t> pairs_;
  std::vector<int> key_owners_;
  std::vector<std::int32_t> next_value_;            ///< of q tile + component
  std::vector<std::int32_t> writers_;               ///< per row, the component that writes it
  std::vector<std::set<std::int32_t>> components_;  ///< per q tile
  std::vector<TileSemaphores> semaphores_;          ///< per q tile, without their begins
  bool is_whole_ = true;
};

}  // namespace

bool is_left(const BackwardList& list, std::int32_t row) {
  const std::vector<std::int32_t>& tiles = list.left_tiles;
  return std::binary_search(tiles.begin(), tiles.end(), row / list.tile_tokens);
}

bool is_list_of(const BackwardList& list, const Mask& mask) { return Expansion(list).is_of(mask); }

}  // namespace magi::test
