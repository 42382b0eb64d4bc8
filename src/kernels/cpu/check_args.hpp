// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/check/check_attention.hpp"

namespace magi::cpu {

/// Names what the kernels take.
inline constexpr AttentionLimits kLimits{
    .types = types_of({DType::Float64, DType::Float32, DType::Float16, DType::BFloat16}),
    .has_float_outputs = true,
    .has_sink = true,
    .has_softcap = true,
    .has_max_logits = true,
    .has_dlse = true,
    .has_any_scale = true,
    .has_spread_sinks = true};

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

/// Throws InvalidArgument unless the kernels can run the call as it stands, under `lists` where
/// they are given in place of slices.
Sizes check_args(const ForwardArgs& args, const KeyLists* lists = nullptr);
Sizes check_args(const BackwardArgs& args, const KeyLists* lists = nullptr);

}  // namespace magi::cpu
