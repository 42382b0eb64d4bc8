// SPDX-License-Identifier: Apache-2.0
#include "cuda/check.hpp"
#include "support/gpu/device_tools.hpp"

namespace magi::test {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 1024;
constexpr int kDisturbingSteps = 256;

__device__ std::int64_t first_index() {
  return std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}
__device__ std::int64_t stride() { return std::int64_t{gridDim.x} * blockDim.x; }

__global__ void __launch_bounds__(kThreads)
    fill_kernel(std::uint16_t* data, std::int64_t count, std::uint64_t seed) {
  for (std::int64_t i = first_index(); i < count; i += stride()) data[i] = hashed_bfloat16(seed, i);
}

__global__ void __launch_bounds__(kThreads)
    compare_kernel(const unsigned* a, const unsigned* b, std::int64_t words,
                   unsigned long long* count) {
  unsigned long long differing = 0;
  for (std::int64_t i = first_index(); i < words; i += stride()) differing += a[i] != b[i] ? 1 : 0;
  if (differing > 0) atomicAdd(count, differing);
}

__global__ void __launch_bounds__(kThreads)
    disturb_kernel(const float* array, std::int64_t count, float* result) {
  float sum = 0.0f;
  for (int step = 0; step < kDisturbingSteps; ++step) {
    const std::int64_t at = (first_index() + step * stride() * 7) % count;
    sum = sum * 0.5f + array[at];
  }
  result[first_index()] = sum;
}

}  // namespace

void fill_hashed(void* data, std::int64_t count, std::uint64_t seed, cudaStream_t stream) {
  fill_kernel<<<kBlocks, kThreads, 0, stream>>>(static_cast<std::uint16_t*>(data), count, seed);
  cuda_check(cudaGetLastError(), "fill_kernel");
}

void count_differences(const void* a, const void* b, std::size_t size_bytes,
                       unsigned long long* count, cudaStream_t stream) {
  compare_kernel<<<kBlocks, kThreads, 0, stream>>>(
      static_cast<const unsigned*>(a), static_cast<const unsigned*>(b),
      static_cast<std::int64_t>(size_bytes / sizeof(unsigned)), count);
  cuda_check(cudaGetLastError(), "compare_kernel");
}

void disturb(const float* array, std::size_t count, float* result, int num_ctas,
             cudaStream_t stream) {
  disturb_kernel<<<num_ctas, kThreads, 0, stream>>>(array, static_cast<std::int64_t>(count),
                                                    result);
  cuda_check(cudaGetLastError(), "disturb_kernel");
}

}  // namespace magi::test
