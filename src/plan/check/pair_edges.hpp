// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "magi/mask.hpp"

namespace magi::planner {

/// Compares two multisets of (query, key) pairs that are given as slices: exactly, without listing
/// pairs, in time linear in the slices where they are equal.
///
/// In row i a slice adds +1 at its first key and -1 after its last. Over the rows these edges lie
/// on at most four straight lines: a key (k constant) or a diagonal (k - i constant). The multisets
/// are equal iff the edges of all slices, one side counted negatively, add up to zero at every
/// (row, key). Ends of straight parts are counted by line and row in a hash table; equal
/// parts of equal lines cancel there, however the slices are cut. What is left are single rows,
/// where a key and a diagonal cross and either may stand for the edge, and, where multisets differ,
/// more.
class PairEdges {
 public:
  /// `num_slices`: about how many will be added.
  explicit PairEdges(std::size_t num_slices);

  /// Counts the pairs of a slice `times` times; negatively for the other side. Rows and keys of the
  /// slice are global rows.
  void add(const BandSlice& slice, std::int32_t times);

  /// A query row in which the sides differ; absent when they are equal.
  std::optional<std::int32_t> differing_row() const;

 private:
  struct Count {
    std::uint64_t point = kNoPoint;
    std::int64_t times = 0;
  };
  /// A part of a line whose edges do not cancel with others of this line.
  struct Part {
    std::int64_t line = 0;  ///< key, or diagonal k - i
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::int64_t times = 0;
  };
  static constexpr std::uint64_t kNoPoint = ~std::uint64_t{0};

  void add_part(std::uint64_t line, std::int64_t begin, std::int64_t end, std::int64_t times);
  void count(std::uint64_t point, std::int64_t times);
  void grow();
  std::vector<Part> parts_left(bool is_diagonal) const;
  static std::optional<std::int32_t> unmatched_row(const std::vector<Part>& parts, int sign,
                                                   const std::vector<Part>& others);

  std::vector<Count> counts_;  // open addressing; a power of two
  std::size_t num_counts_ = 0;
};

}  // namespace magi::planner
