// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace magi {

/// The rank with the least load among those with room, the lowest of equal ones: a tree of matches
/// between neighbours, so that a change costs the logarithm of the ranks.
class LightestRank {
 public:
  /// All loads are 0, and all ranks have room.
  explicit LightestRank(std::size_t num_ranks)
      : num_leaves_(std::bit_ceil(num_ranks)), load_(num_leaves_, 0), winner_(2 * num_leaves_) {
    for (std::size_t r = 0; r < num_leaves_; ++r) {
      if (r >= num_ranks) load_[r] = kFull;
      winner_[num_leaves_ + r] = static_cast<std::int32_t>(r);
    }
    for (std::size_t node = num_leaves_ - 1; node > 0; --node) play(node);
  }

  /// Unspecified where all ranks are full.
  std::size_t rank() const { return static_cast<std::size_t>(winner_[1]); }

  void set_load(std::size_t rank, std::int64_t load) {
    load_[rank] = load;
    for (std::size_t node = (num_leaves_ + rank) / 2; node > 0; node /= 2) play(node);
  }
  void set_full(std::size_t rank) { set_load(rank, kFull); }

 private:
  static constexpr std::int64_t kFull = std::numeric_limits<std::int64_t>::max();

  void play(std::size_t node) {
    const std::int32_t left = winner_[2 * node];
    const std::int32_t right = winner_[2 * node + 1];
    const bool is_right =
        load_[static_cast<std::size_t>(right)] < load_[static_cast<std::size_t>(left)];
    winner_[node] = is_right ? right : left;
  }

  std::size_t num_leaves_;
  std::vector<std::int64_t> load_;
  std::vector<std::int32_t> winner_;  ///< [2 * num_leaves], the root is 1
};

}  // namespace magi
