// SPDX-License-Identifier: Apache-2.0
#include "support/gpu/hog.hpp"

namespace magi::test {
namespace {

constexpr int kSharedBytes = 200 * 1024;
constexpr int kThreads = 256;
constexpr int kWords = 8 << 20;
constexpr long long kLimitCycles = 100'000'000'000;  // about a minute

__global__ void __launch_bounds__(kThreads)
    hog_kernel(const volatile int* is_over, volatile unsigned* words) {
  const long long begin = clock64();
  unsigned at = blockIdx.x * kThreads + threadIdx.x;
  unsigned sum = 0;
  while (*is_over == 0 && clock64() - begin < kLimitCycles) {
    for (int i = 0; i < 64; ++i) {
      sum += words[at % kWords];
      at += 7919 * kThreads;
    }
  }
  if (sum == 1) words[0] = sum;  // the buffer holds zeros: never, but the reads have a use
}

}  // namespace

Hog::Hog(int num_ctas) : buffer_(kWords * sizeof(unsigned)) {
  void* flag = nullptr;
  cuda_check(cudaHostAlloc(&flag, sizeof(int), cudaHostAllocMapped), "cudaHostAlloc");
  is_over_ = static_cast<int*>(flag);
  *is_over_ = 0;
  buffer_.fill(0, stream_.handle());
  cuda_check(
      cudaFuncSetAttribute(hog_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
      "cudaFuncSetAttribute");
  hog_kernel<<<num_ctas, kThreads, kSharedBytes, stream_.handle()>>>(
      is_over_, static_cast<unsigned*>(buffer_.data()));
  cuda_check(cudaGetLastError(), "hog_kernel");
}

Hog::~Hog() {
  *static_cast<volatile int*>(is_over_) = 1;
  cudaStreamSynchronize(stream_.handle());
  cudaFreeHost(is_over_);
}

}  // namespace magi::test
