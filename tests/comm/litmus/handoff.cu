// SPDX-License-Identifier: Apache-2.0
#include "comm/litmus/handoff.hpp"
#include "cuda/check.hpp"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/order.cuh"
#include "cuda/ptx/system.cuh"

namespace magi::test {
namespace {

constexpr int kThreads = 256;
constexpr int kWords = kHandoffBytes / 4;
constexpr std::uint64_t kLimitNs = 20'000'000'000;
constexpr unsigned kHeadStartNs = 2000;  ///< of a flag that is raised too early

/// By one thread, without an order to what follows. False where the word does not come.
__device__ bool await_word(const std::uint64_t* word, std::uint64_t value) {
  const std::uint64_t begin = ptx::global_time_ns();
  while (ptx::load_relaxed_system(word) < value) {
    if (ptx::global_time_ns() - begin > kLimitNs) return false;
  }
  return true;
}

__device__ void raise_flag(const Handoff& handoff, std::uint64_t round) {
  ptx::store_system(handoff.flags + blockIdx.x * kHandoffStride, round);
}

__global__ __launch_bounds__(kThreads) void writer_kernel(const __grid_constant__ Handoff handoff) {
  __shared__ bool is_there;
  const auto thread = static_cast<int>(threadIdx.x);
  std::uint32_t* rows = handoff.rows + blockIdx.x * kWords;
  for (std::uint32_t round = 1; round <= handoff.rounds; ++round) {
    if (thread == 0) {
      is_there = await_word(handoff.credits + blockIdx.x * kHandoffStride, round - 1);
      ptx::fence_system();
      if (handoff.is_flag_first) {
        raise_flag(handoff, round);
        ptx::sleep_ns(kHeadStartNs);
      }
    }
    __syncthreads();
    if (!is_there) return;
    for (int i = thread; i < kWords / 4; i += kThreads) {
      reinterpret_cast<uint4*>(rows)[i] = make_uint4(round, round, round, round);
    }
    __syncthreads();
    if (thread == 0 && !handoff.is_flag_first) {
      ptx::fence_system();
      raise_flag(handoff, round);
    }
  }
}

/// The reading block's shared memory.
struct ReaderStorage {
  alignas(128) std::uint32_t rows[kWords];
  ptx::Mbarrier barrier;
  bool is_there;
};

/// By one thread.
__device__ __forceinline__ void load_rows(ReaderStorage& shared, const std::uint32_t* rows) {
  ptx::mbarrier_arrive_expect(shared.barrier, kHandoffBytes);
  ptx::load_bytes(shared.rows, rows, kHandoffBytes, shared.barrier);
}

/// By one thread: waits for the flag and orders what follows behind it.
__device__ __forceinline__ void await_rows(ReaderStorage& shared, const Handoff& handoff,
                                           std::uint32_t round) {
  shared.is_there = await_word(handoff.flags + blockIdx.x * kHandoffStride, round);
  if (!shared.is_there) *handoff.are_late = 1;
  ptx::fence_system();
  ptx::fence_async_global();
}

/// Whether any of the thread's words is not the round's.
__device__ __forceinline__ bool has_others(const std::uint32_t* words, std::uint32_t round) {
  bool is_stale = false;
  for (int i = static_cast<int>(threadIdx.x); i < kWords / 4; i += kThreads) {
    const uint4 seen = reinterpret_cast<const uint4*>(words)[i];
    is_stale |= seen.x != round || seen.y != round || seen.z != round || seen.w != round;
  }
  return is_stale;
}

template <HandoffReader kReader>
__global__ __launch_bounds__(kThreads) void reader_kernel(const __grid_constant__ Handoff handoff) {
  __shared__ ReaderStorage shared;
  const auto thread = static_cast<int>(threadIdx.x);
  const std::uint32_t* rows = handoff.rows + blockIdx.x * kWords;
  constexpr bool kIsBulk = kReader == HandoffReader::Bulk;
  std::uint64_t num_stale = 0;
  std::uint32_t phase = 0;
  if (thread == 0) {
    ptx::mbarrier_init(shared.barrier, 1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  for (std::uint32_t round = 1; round <= handoff.rounds; ++round) {
    // The rows are read before their time, so that caches hold the old ones.
    if (kIsBulk && thread == 0) load_rows(shared, rows);
    if (kIsBulk) ptx::mbarrier_wait(shared.barrier, phase++ & 1);
    const bool is_early = !kIsBulk && has_others(rows, round);
    if (thread == 0) await_rows(shared, handoff, round);
    __syncthreads();
    if (!shared.is_there) break;
    if (kIsBulk && thread == 0) load_rows(shared, rows);
    if (kIsBulk) ptx::mbarrier_wait(shared.barrier, phase++ & 1);
    const bool is_stale = has_others(kIsBulk ? shared.rows : rows, round);
    const bool is_any = __syncthreads_or(is_stale) != 0;
    if (thread == 0) {
      // The early look has a use, so that it is not left out.
      num_stale += is_any || (is_early && is_stale) ? 1 : 0;
      ptx::fence_system();
      ptx::store_system(handoff.credits + blockIdx.x * kHandoffStride, round);
    }
  }
  if (thread == 0) handoff.stale[blockIdx.x] = num_stale;
}

}  // namespace

void launch_handoff_writer(const Handoff& handoff, int num_pairs, cudaStream_t stream) {
  writer_kernel<<<num_pairs, kThreads, 0, stream>>>(handoff);
  cuda_check(cudaGetLastError(), "writer_kernel");
}

void launch_handoff_reader(const Handoff& handoff, int num_pairs, cudaStream_t stream) {
  const auto kernel = handoff.reader == HandoffReader::Bulk ? reader_kernel<HandoffReader::Bulk>
                                                            : reader_kernel<HandoffReader::Plain>;
  kernel<<<num_pairs, kThreads, 0, stream>>>(handoff);
  cuda_check(cudaGetLastError(), "reader_kernel");
}

}  // namespace magi::test
