// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "magi/tensor.hpp"

// Rows of a [tokens, heads, dim] tensor of any floating type, to and from the type that kernels
// compute in.
namespace magi::cpu {

/// Elements between tensor[0, 0, 0] and tensor[token, head, 0].
inline std::int64_t row_offset(const TensorView& tensor, std::int64_t token, std::int64_t head) {
  return token * tensor.stride[0] + head * tensor.stride[1];
}

/// tensor[token, head, :] to `to`, `to` padded with zeros up to `padded_dim`.
template <typename Real>
void load_row(const TensorView& tensor, std::int64_t token, std::int64_t head,
              std::int64_t padded_dim, Real* to);

/// tensor[token, head, :] = factor * from, or += where adding.
enum class StoreMode : std::int32_t { Write, Add };
template <typename Real>
void store_row(const TensorView& tensor, std::int64_t token, std::int64_t head, const Real* from,
               Real factor, StoreMode mode);

/// Element [token, head] of a tensor whose type is Real ([tokens, heads]).
template <typename Real>
Real& element(const TensorView& tensor, std::int64_t token, std::int64_t head) {
  return static_cast<Real*>(tensor.data)[row_offset(tensor, token, head)];
}

}  // namespace magi::cpu
