// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/placement/chunk_table.hpp"

namespace magi {

/// Key cost of any mask, over blocks of key rows: a block counts whole as soon as a chunk sees a
/// row of it. Sets of blocks are bits, at most kMostBlocks of them, so memory is linear in chunks.
class BlockKeys {
 public:
  using Word = std::uint64_t;
  static constexpr std::int32_t kMostBlocks = 1024;

  explicit BlockKeys(const ChunkTable& table);

  /// Does what MonotoneKeys::visit_cost does.
  std::int64_t visit_cost() const { return 2 + static_cast<std::int64_t>(words_) / 3; }

  /// Remote rows that the chunk adds to a rank that holds `chunks`; may be negative.
  std::int32_t cost_of_adding(std::int32_t chunk, std::span<const std::int32_t> chunks) const;

  /// Two ranks side by side; as MonotoneKeys::Pair.
  class Pair {
   public:
    void load(const BlockKeys& keys, std::span<const std::int32_t> x,
              std::span<const std::int32_t> y);
    std::span<const std::int32_t> gain_x() const { return gain_x_; }
    std::span<const std::int32_t> gain_y() const { return gain_y_; }
    std::int64_t swap(std::size_t a, std::size_t b) const;

   private:
    /// The rows that one rank needs and holds.
    struct Side {
      std::span<const std::int32_t> chunks;
      std::vector<Word> once;   // needed by a chunk
      std::vector<Word> twice;  // needed by two chunks or more
      std::vector<Word> own;
    };
    void fill(std::span<const std::int32_t> chunks, Side& side) const;
    void fill_gains(const Side& from, const Side& to, std::vector<std::int32_t>& gain) const;
    std::int64_t replace(const Side& side, std::int32_t out, std::int32_t in) const;

    const BlockKeys* keys_ = nullptr;
    Side x_;
    Side y_;
    std::vector<std::int32_t> gain_x_;
    std::vector<std::int32_t> gain_y_;
  };

 private:
  const Word* seen(std::int32_t chunk) const {
    return &seen_[static_cast<std::size_t>(chunk) * words_];
  }
  const Word* own(std::int32_t chunk) const {
    return &own_[static_cast<std::size_t>(chunk) * words_];
  }

  std::size_t words_ = 0;
  std::int32_t block_rows_ = 1;
  std::vector<Word> seen_;  // [num_chunks, words_]
  std::vector<Word> own_;   // blocks that lie wholly in the chunk's rows
};

}  // namespace magi
