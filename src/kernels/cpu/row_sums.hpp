// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cpu/run_items.hpp"
#include "magi/key_lists.hpp"

namespace magi::cpu {

/// The largest score of each row, sinks among them, and the sum of 2^(score - largest), as the
/// forward finds them: [heads_q, rows_q], base 2. The sum of a row without keys and sinks is 0.
template <typename Real>
struct RowSums {
  Buffer<Real> largest;
  Buffer<Real> sum;
};

/// `args` needs no results. lists: in place of args.slices, or null. Real: float or double, as
/// `sizes` say.
template <typename Real>
RowSums<Real> row_sums(const ForwardArgs& args, const KeyLists* lists, const Sizes& sizes, Isa isa);

}  // namespace magi::cpu
