// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/sm90/backward/shared.cuh"
#include "magi/mask.hpp"

namespace magi::sm90 {

/// A band's mask as if the q tile began at token 0.
__device__ __forceinline__ StepInfo mask_of(const BandSlice& band, std::int32_t key_begin) {
  return {.key_low = band.k0 - key_begin,
          .key_high = band.k1 - key_begin,
          .q_low = band.q0,
          .q_high = band.q1,
          .low = key_begin - band.d_max,
          .high = key_begin - band.d_min + 1};
}

/// Clamps a token so that its product with packed heads does not overflow; values that can affect a
/// mask stay exact.
__device__ __forceinline__ std::int32_t clamped_token(std::int32_t value) {
  constexpr std::int32_t kFar = 1 << 20;
  return min(max(value, -kFar), kFar);
}

/// Sets the step's mask for a q tile that begins at `token`.
__device__ __forceinline__ void set_mask(StepInfo& step, const StepInfo& mask, std::int32_t token) {
  step.key_low = mask.key_low;
  step.key_high = mask.key_high;
  step.q_low = clamped_token(mask.q_low - token);
  step.q_high = clamped_token(mask.q_high - token);
  step.low = clamped_token(mask.low - token);
  step.high = clamped_token(mask.high - token);
}

}  // namespace magi::sm90
