// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <source_location>

#include "cuda/ptx/wait.cuh"

// Semaphores: counters in device memory by which CTAs of one GPU order what they write. Flags:
// words in device memory that other GPUs write.
namespace magi::ptx {

/// A read that what comes after it in the thread is ordered behind, for the whole GPU.
__device__ __forceinline__ unsigned load_acquire(const unsigned* address) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

/// A write after all that the thread has done or seen, for the whole GPU.
__device__ __forceinline__ void store_release(unsigned* address, unsigned value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

/// Adds 1 to a semaphore after all that the thread has done or seen, for the whole GPU.
__device__ __forceinline__ void signal_semaphore(unsigned* semaphore) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(semaphore), "r"(1u) : "memory");
}

/// Waits until a semaphore has the value.
__device__ __forceinline__ void wait_semaphore(
    const unsigned* semaphore, unsigned value,
    const std::source_location& where = std::source_location::current()) {
  const auto load = [&] { return load_acquire(semaphore); };
  wait_until([&] { return load() == value; }, {"semaphore", semaphore, value}, load, where);
}

/// Waits until a semaphore has the value or a larger one.
__device__ __forceinline__ void wait_semaphore_at_least(
    const unsigned* semaphore, unsigned value,
    const std::source_location& where = std::source_location::current()) {
  const auto load = [&] { return load_acquire(semaphore); };
  wait_until([&] { return load() >= value; }, {"semaphore", semaphore, value}, load, where);
}

/// Orders all that the thread has done or seen before what it does after, for the whole GPU.
__device__ __forceinline__ void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

/// A read of a flag that another GPU writes. Nothing is ordered behind it before fence_system.
__device__ __forceinline__ std::uint64_t load_relaxed_system(const std::uint64_t* address) {
  std::uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}

/// Orders all that the thread has done or seen before what it does after, for all GPUs and the
/// host.
__device__ __forceinline__ void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

/// Lets the thread pause for up to twice `duration` nanoseconds.
__device__ __forceinline__ void sleep_ns(unsigned duration) {
  asm volatile("nanosleep.u32 %0;" ::"r"(duration) : "memory");
}

/// Lets the next kernel of the stream be launched, if it asks for that, where this grid leaves room
/// for it: as soon as each CTA has a thread that came here, or has ended. Code for GPUs before
/// Hopper has neither this nor the next: nothing is launched ahead there (cuda/launch.cuh).
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Waits until the kernels before this one are done and what they wrote can be read: needed where a
/// kernel is launched ahead of their end.
__device__ __forceinline__ void await_kernels_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace magi::ptx
