// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/sm90/listed/launch.hpp"
#include "magi/tensor.hpp"

// Keys that are latents with rotary columns (absorbed MLA): one row is the key, and its first
// columns are the value.
namespace magi::sm90 {

inline constexpr std::int32_t kLatentDim = 576;
inline constexpr std::int32_t kLatentValueDim = 512;

/// Whether a call has the head dims of latents.
inline bool has_latent_dims(const TensorView& q, const TensorView& v) {
  return q.shape[2] == kLatentDim && v.shape[2] == kLatentValueDim;
}

/// The kernels for latents, in bfloat16. The backward makes sums or parts of rows that are
/// gradients of the key and, in the first columns, also of the value.
const ListedInstance& latent_instance();
const ListedBackwardInstance& latent_backward_instance(bool has_parts);

}  // namespace magi::sm90
