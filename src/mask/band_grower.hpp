// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "magi/band.hpp"

namespace magi {

/// Makes slices of the runs of keys of row after row: a run that keeps to the band of the one above
/// continues its slice.
class BandGrower {
 public:
  /// The runs of the next row to have any, ascending with gaps between them.
  void add_row(std::int32_t row, std::span<const Range> runs);
  /// All slices in order of q0 and k0.
  std::vector<BandSlice> finish();

 private:
  /// A slice that grows downwards row by row. A band's left edge rests, then moves by one key per
  /// row; its right edge moves, then rests. A run continues the slice while it keeps to that.
  struct Growing {
    std::int32_t first_row = 0;
    std::int32_t num_rows = 1;
    Range first;
    Range last;
    bool left_moves = false;
    bool right_moved = false;
    bool right_rests = false;

    bool take(Range run);
    BandSlice slice() const;
  };

  void close_all();

  std::vector<BandSlice> slices_;
  // Ascending in keys; runs of a row leave gaps, so at most one fits a run.
  std::vector<Growing> growing_;
  std::vector<Growing> still_;
  std::int32_t next_row_ = 0;
};

}  // namespace magi
