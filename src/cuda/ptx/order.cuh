// SPDX-License-Identifier: Apache-2.0
#pragma once

// Counters in device memory by which CTAs of one GPU order what they write.
namespace magi::ptx {

__device__ __forceinline__ unsigned load_acquire(const unsigned* address) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

__device__ __forceinline__ void add_release(unsigned* address, unsigned value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

/// Orders all that the thread has done or seen before what it does after, for the whole GPU.
__device__ __forceinline__ void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

/// Lets the next kernel of the stream be launched, if it asks for that, as soon as this grid leaves
/// room for it.
__device__ __forceinline__ void launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/// Until the kernels before this one are done and what they wrote can be read: needed where a
/// kernel is launched ahead of their end.
__device__ __forceinline__ void await_kernels_before() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

}  // namespace magi::ptx
