// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

// What tests of large tensors and of undisturbed results run on the device besides the kernels.
namespace magi::test {

#ifdef __CUDACC__
#define MAGI_TEST_HOST_DEVICE __host__ __device__
#else
#define MAGI_TEST_HOST_DEVICE
#endif

/// The bits of element `index` of a random bfloat16 tensor: either sign, magnitude 0.5 to 2.
MAGI_TEST_HOST_DEVICE inline std::uint16_t hashed_bfloat16(std::uint64_t seed, std::int64_t index) {
  std::uint64_t word = static_cast<std::uint64_t>(index) + seed * 0x9e3779b97f4a7c15u;
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
  word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
  word ^= word >> 31;
  return static_cast<std::uint16_t>(0x3f00u + (word & 0xffu) + ((word & 0x100u) << 7));
}

/// data[i] = hashed_bfloat16(seed, i).
void fill_hashed(void* data, std::int64_t count, std::uint64_t seed, cudaStream_t stream);

/// Adds to *count the number of 4-byte words in which the two arrays differ.
void count_differences(const void* a, const void* b, std::size_t size_bytes,
                       unsigned long long* count, cudaStream_t stream);

/// Keeps `num_ctas` CTAs busy with arithmetic and with reads of the array, about 0.2 ms.
void disturb(const float* array, std::size_t count, float* result, int num_ctas,
             cudaStream_t stream);

}  // namespace magi::test
