// SPDX-License-Identifier: Apache-2.0
#include "batch/slots.hpp"

#include <numeric>
#include <utility>

#include "base/math.hpp"

namespace magi::batch {

Slots::Slots(const BatchConfig& config, const BatchWork& work, std::int32_t num_micro_batches)
    : num_ranks_(config.num_ranks),
      node_size_(node_size(config)),
      chunk_size_(config.chunk_size),
      room_rows_(chunks_per_rank(config) * config.chunk_size),
      row_fetch_(work.row_fetch),
      row_cross_(work.row_cross) {
  const auto size =
      static_cast<std::size_t>(num_micro_batches) * static_cast<std::size_t>(config.num_ranks);
  ticks_.assign(size, 0);
  fetch_.assign(size, 0);
  cross_.assign(size, 0);
  rows_.assign(size, 0);
}

Ticks Slots::longest() const {
  Ticks longest = 0;
  for (std::size_t slot = 0; slot < size(); ++slot) longest = std::max(longest, time(slot));
  return longest;
}

Ticks Slots::sum_of_longest() const {
  Ticks sum = 0;
  Ticks longest = 0;
  for (std::size_t slot = 0; slot < size(); ++slot) {
    longest = std::max(longest, time(slot));
    if ((slot + 1) % static_cast<std::size_t>(num_ranks_) == 0) sum += std::exchange(longest, 0);
  }
  return sum;
}

std::int64_t Slots::padded_rows(std::size_t slot) const {
  return align_up<std::int64_t>(rows_[slot], chunk_size_);
}

void Slots::change(const Spread& spread, std::int32_t sign) {
  const auto count = static_cast<std::int32_t>(spread.chunks.size());
  const std::int64_t all =
      std::accumulate(spread.chunks.begin(), spread.chunks.end(), std::int64_t{0});
  for (std::int32_t begin = 0; begin < count;) {
    const std::int32_t node = (spread.first + begin) / node_size_;
    std::int32_t end = begin;
    std::int64_t in_node = 0;
    std::int32_t holders = 0;
    for (; end < count && (spread.first + end) / node_size_ == node; ++end) {
      const std::int32_t own = spread.chunks[static_cast<std::size_t>(end)];
      in_node += own;
      holders += own > 0 ? 1 : 0;
    }
    for (std::int32_t i = begin; i < end; ++i) {
      const std::int32_t own = spread.chunks[static_cast<std::size_t>(i)];
      if (own == 0) continue;
      const std::size_t slot = slot_of(spread.micro_batch, spread.first + i);
      ticks_[slot] += sign * share_of(spread.work.ticks, own, all);
      rows_[slot] += sign * own * chunk_size_;
      fetch_[slot] += sign * row_fetch_ * ((all - own) * chunk_size_);
      // Rows of other nodes cross once to a node, whose ranks share them out.
      cross_[slot] += sign * row_cross_ * ((all - in_node) * chunk_size_ / holders);
    }
    begin = end;
  }
}

}  // namespace magi::batch
