// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "base/check.hpp"
#include "cuda/check.hpp"
#include "kernels/sm90/global_memory.cuh"
#include "kernels/sm90/poison.hpp"

namespace magi::sm90 {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 512;
constexpr std::uint16_t kHalfNan = 0x7fff;  // in both 16-bit types

struct PoisonTargets {
  PoisonedRows tensors[kMostPoisoned];
  std::int32_t count = 0;
};

/// A warp for each row of a head.
__device__ void poison(const PoisonedRows& target) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t first = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32;
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x / 32;
  for (std::int64_t i = first; i < target.num_rows * target.heads; i += stride) {
    const std::int64_t row = i / target.heads;
    const std::int64_t head = i % target.heads;
    for (std::int64_t d = lane; d < target.dim; d += 32) {
      if (target.rows.is_float()) {
        row_at<float>(target.rows, row, head)[d] = NAN;
      } else {
        row_at<std::uint16_t>(target.rows, row, head)[d] = kHalfNan;
      }
    }
  }
}

template <typename Outcome>
__global__ void __launch_bounds__(kThreads)
    poison_kernel(const __grid_constant__ Outcome outcome,
                  const __grid_constant__ PoisonTargets targets) {
  if (outcome.holds()) return;
  for (std::int32_t i = 0; i < targets.count; ++i) poison(targets.tensors[i]);
}

template <typename Outcome>
void launch_poison(const Outcome& outcome, std::initializer_list<PoisonedRows> targets,
                   cudaStream_t stream) {
  MAGI_CHECK(targets.size() <= kMostPoisoned);
  PoisonTargets all;
  std::copy(targets.begin(), targets.end(), all.tensors);
  all.count = static_cast<std::int32_t>(targets.size());
  poison_kernel<Outcome><<<kBlocks, kThreads, 0, stream>>>(outcome, all);
  cuda_check(cudaGetLastError(), "poison_kernel");
}

__global__ void __launch_bounds__(128) fill_kernel(float* values, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) values[i] = -INFINITY;
}

}  // namespace

PoisonedRows spoiled_rows(const TensorView& tensor) {
  return {.rows = {tensor.data, tensor.stride[0], tensor.stride[1], tensor.dtype},
          .num_rows = tensor.shape[0],
          .heads = tensor.shape[1],
          .dim = tensor.rank == 2 ? 1 : tensor.shape[2]};
}

void fill_no_logits(float* values, int count, cudaStream_t stream) {
  fill_kernel<<<(count + 127) / 128, 128, 0, stream>>>(values, count);
  cuda_check(cudaGetLastError(), "fill_kernel");
}

void poison_unless_held(const BlockListOutcome& outcome,
                        std::initializer_list<PoisonedRows> targets, cudaStream_t stream) {
  launch_poison(outcome, targets, stream);
}

void poison_unless_held(const BlockKeyOutcome& outcome, std::initializer_list<PoisonedRows> targets,
                        cudaStream_t stream) {
  launch_poison(outcome, targets, stream);
}

}  // namespace magi::sm90
