// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "batch/work.hpp"

namespace magi::batch {

/// A sample on neighbouring ranks of a micro-batch, chunk counts from rank `first` on; some may be
/// 0 inside.
struct Spread {
  Work work;
  std::int32_t micro_batch = 0;
  std::int32_t first = 0;
  std::vector<std::int32_t> chunks;
};

/// The time and memory of each rank of each micro-batch. A slot is a rank of a micro-batch.
class Slots {
 public:
  Slots(const BatchConfig& config, const BatchWork& work, std::int32_t num_micro_batches);

  std::size_t size() const { return ticks_.size(); }
  std::size_t slot_of(std::int32_t micro_batch, std::int32_t rank) const {
    return static_cast<std::size_t>(micro_batch) * static_cast<std::size_t>(num_ranks_) +
           static_cast<std::size_t>(rank);
  }
  Ticks time(std::size_t slot) const { return ticks_[slot] + std::max(fetch_[slot], cross_[slot]); }
  Ticks longest() const;
  /// The longest rank of each micro-batch, added up.
  Ticks sum_of_longest() const;
  /// Rows that whole samples may still take, and chunks that samples which spread may.
  std::int32_t room(std::size_t slot) const { return room_rows_ - rows_[slot]; }
  std::int32_t chunks_left(std::size_t slot) const { return room(slot) / chunk_size_; }
  /// Rows that a rank holds, padding included.
  std::int64_t padded_rows(std::size_t slot) const;
  /// Rows that a rank waits for.
  Ticks fetch(std::size_t slot) const { return fetch_[slot]; }
  Ticks cross(std::size_t slot) const { return cross_[slot]; }

  void add(std::size_t slot, const Work& work) {
    ticks_[slot] += work.ticks;
    rows_[slot] += work.rows;
  }
  void add(const Spread& spread) { change(spread, 1); }
  void remove(const Spread& spread) { change(spread, -1); }

 private:
  void change(const Spread& spread, std::int32_t sign);

  std::int32_t num_ranks_;
  std::int32_t node_size_;
  std::int32_t chunk_size_;
  std::int32_t room_rows_;
  Ticks row_fetch_;
  Ticks row_cross_;
  std::vector<Ticks> ticks_;
  std::vector<Ticks> fetch_;
  std::vector<Ticks> cross_;
  std::vector<std::int32_t> rows_;  ///< of whole samples, and of the chunks of others
};

}  // namespace magi::batch
