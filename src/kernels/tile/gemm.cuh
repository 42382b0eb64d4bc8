// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/wgmma.cuh"
#include "kernels/tile/descriptor.cuh"

// Whole-tile products of one warpgroup, issued and committed as one group, not waited for.
namespace magi::tile {

/// d[64, kColumns] = A[64, kDepth] B[kColumns, kDepth]^T, both in shared memory; or += of it.
template <DType kType, int kColumns, int kDepth, bool kAdds = false, typename A, typename B, int kD>
__device__ __forceinline__ void issue_abt(float (&d)[kD], const A& a, const B& b) {
#pragma unroll
  for (int step = 0; step < kDepth / kStepElements; ++step) {
    ptx::Wgmma<kType, kColumns>::ss(d, a.step(step), b.step(step), step > 0 || kAdds ? 1 : 0);
  }
  ptx::wgmma_commit();
}

/// d[64, kColumns] = A[kDepth, 64]^T B[kDepth, kColumns], both in shared memory.
template <DType kType, int kColumns, int kDepth, typename A, typename B, int kD>
__device__ __forceinline__ void issue_atb(float (&d)[kD], const A& a, const B& b) {
#pragma unroll
  for (int step = 0; step < kDepth / kStepElements; ++step) {
    ptx::Wgmma<kType, kColumns>::mn(d, a.step(step), b.step(step), step == 0 ? 0 : 1);
  }
  ptx::wgmma_commit();
}

/// d[64, kColumns] += A[kDepth, 64]^T B[kDepth, kColumns], both in shared memory.
template <DType kType, int kColumns, int kDepth, typename A, typename B, int kD>
__device__ __forceinline__ void issue_add_atb(float (&d)[kD], const A& a, const B& b) {
#pragma unroll
  for (int step = 0; step < kDepth / kStepElements; ++step) {
    ptx::Wgmma<kType, kColumns>::mn(d, a.step(step), b.step(step), 1);
  }
  ptx::wgmma_commit();
}

/// d[64, kColumns] += A[64, kDepth] B[kDepth, kColumns], both in shared memory.
template <DType kType, int kColumns, int kDepth, typename A, typename B, int kD>
__device__ __forceinline__ void issue_add_ab(float (&d)[kD], const A& a, const B& b) {
#pragma unroll
  for (int step = 0; step < kDepth / kStepElements; ++step) {
    ptx::Wgmma<kType, kColumns>::kn(d, a.step(step), b.step(step), 1);
  }
  ptx::wgmma_commit();
}

template <DType kType, int kColumns, int kSteps, int kStep, typename B, int kD, int kA>
__device__ __forceinline__ void accumulate_steps(float (&d)[kD], const std::uint32_t (&a)[kA],
                                                 const B& b) {
  if constexpr (kStep < kSteps) {
    ptx::Wgmma<kType, kColumns>::template rs<kStep>(d, a, b.step(kStep), 1);
    accumulate_steps<kType, kColumns, kSteps, kStep + 1>(d, a, b);
  }
}

/// d[64, kColumns] += A[64, kDepth] B[kDepth, kColumns], A in registers.
template <DType kType, int kColumns, int kDepth, typename B, int kD, int kA>
__device__ __forceinline__ void issue_accumulate(float (&d)[kD], const std::uint32_t (&a)[kA],
                                                 const B& b) {
  static_assert(kA >= kDepth / 4);
  accumulate_steps<kType, kColumns, kDepth / kStepElements, 0>(d, a, b);
  ptx::wgmma_commit();
}

template <DType kType, int kColumns, int kSteps, int kStep, typename B, int kD, int kA>
__device__ __forceinline__ void accumulate_rows(float (&d)[kD], const std::uint32_t (&a)[kA],
                                                const B& b) {
  if constexpr (kStep < kSteps) {
    ptx::Wgmma<kType, kColumns>::template rk<kStep>(d, a, b.step(kStep), 1);
    accumulate_rows<kType, kColumns, kSteps, kStep + 1>(d, a, b);
  }
}

/// d[64, kColumns] += A[64, kDepth] B[kColumns, kDepth]^T, A in registers.
template <DType kType, int kColumns, int kDepth, typename B, int kD, int kA>
__device__ __forceinline__ void issue_accumulate_abt(float (&d)[kD], const std::uint32_t (&a)[kA],
                                                     const B& b) {
  static_assert(kA >= kDepth / 4);
  accumulate_rows<kType, kColumns, kDepth / kStepElements, 0>(d, a, b);
  ptx::wgmma_commit();
}

}  // namespace magi::tile
