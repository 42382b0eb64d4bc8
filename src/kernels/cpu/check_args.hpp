// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "magi/key_lists.hpp"

namespace magi::cpu {

/// The sizes of a checked call.
struct Sizes {
  std::int32_t rows_q = 0;
  std::int32_t rows_k = 0;
  std::int64_t heads_q = 0;
  std::int64_t heads_kv = 0;
  std::int64_t group = 0;  ///< query heads per kv head
  std::int64_t dim_qk = 0;
  std::int64_t dim_v = 0;
  std::int64_t num_sinks = 0;
  std::int64_t area = 0;        ///< visible pairs, with multiplicity
  DType real = DType::Float32;  ///< what the call computes in: float32 or float64

  /// Operations of one product over all visible pairs, for dims [.., dim].
  double product_flops(std::int64_t dim) const {
    return 2.0 * static_cast<double>(area) * static_cast<double>(heads_q * dim);
  }
};

/// Throws InvalidArgument naming tensor, value seen and values allowed unless the kernels can run
/// the call as it stands.
Sizes check_args(const ForwardArgs& args);
Sizes check_args(const BackwardArgs& args);

/// The same of lists, whose report is not written here.
void check_lists(const KeyLists& lists, const Sizes& sizes);

}  // namespace magi::cpu
