// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include "cuda/ptx/barrier.cuh"

// Bulk tensor copies between device and shared memory (TMA), and what orders them.
namespace magi::ptx {

using CachePolicy = std::uint64_t;

__device__ __forceinline__ CachePolicy cache_evict_last() {
  CachePolicy policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ CachePolicy cache_evict_first() {
  CachePolicy policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/// Brings what lies in device memory near: into L2.
__device__ __forceinline__ void prefetch(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address) : "memory");
}

/// Likewise, into the cache of the multiprocessor.
__device__ __forceinline__ void prefetch_l1(const void* address) {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(address) : "memory");
}

/// Element coordinates of a box in a [token, head, dim] tensor. A box may hang over every edge:
/// loads read zeros there, stores drop what lies outside.
struct BoxOrigin {
  int dim;
  int head;
  int token;
};

__device__ __forceinline__ void load_box(void* destination, const CUtensorMap& map, BoxOrigin box,
                                         Mbarrier& barrier, CachePolicy policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(destination)),
      "l"(&map), "r"(box.dim), "r"(box.head), "r"(box.token), "r"(shared_address(&barrier)),
      "l"(policy)
      : "memory");
}

/// Does the above, cached as usual.
__device__ __forceinline__ void load_box(void* destination, const CUtensorMap& map, BoxOrigin box,
                                         Mbarrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(destination)),
      "l"(&map), "r"(box.dim), "r"(box.head), "r"(box.token), "r"(shared_address(&barrier))
      : "memory");
}

/// Coordinates of a box in a tensor's windows (make_window_map): its row 0 is row `row` of the
/// window that begins at `token`.
struct WindowOrigin {
  int dim;
  int head;
  int row;
  int token;
};

__device__ __forceinline__ void load_window(void* destination, const CUtensorMap& map,
                                            WindowOrigin box, Mbarrier& barrier,
                                            CachePolicy policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(shared_address(destination)),
      "l"(&map), "r"(box.dim), "r"(box.head), "r"(box.row), "r"(box.token),
      "r"(shared_address(&barrier)), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void store_box(const CUtensorMap& map, BoxOrigin box,
                                          const void* source) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map),
      "r"(box.dim), "r"(box.head), "r"(box.token), "r"(shared_address(source))
      : "memory");
}

/// Plain bytes: addresses and size are multiples of 16.
__device__ __forceinline__ void load_bytes(void* destination, const void* source, int bytes,
                                           Mbarrier& barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(destination)),
      "l"(source), "r"(bytes), "r"(shared_address(&barrier))
      : "memory");
}

/// Copies 16 bytes, or writes as many zeros and reads nothing where `bytes` is 0. An ordinary
/// write, which products see behind fence_async_shared.
__device__ __forceinline__ void copy_async(std::uint32_t destination, const void* source,
                                           int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source),
               "r"(bytes)
               : "memory");
}

/// One arrival when all copies that this thread has begun by copy_async are done.
__device__ __forceinline__ void copy_async_arrive(Mbarrier& barrier) {
  asm volatile(
      "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&barrier))
      : "memory");
}

/// Adds four floats from registers to those in device memory, in no order with anything.
__device__ __forceinline__ void add_float4(float* destination, float x, float y, float z, float w) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(destination),
               "f"(x), "f"(y), "f"(z), "f"(w)
               : "memory");
}

/// Stores four floats from registers.
__device__ __forceinline__ void store_float4(float* destination, float x, float y, float z,
                                             float w) {
  asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(destination), "f"(x), "f"(y),
               "f"(z), "f"(w)
               : "memory");
}

__device__ __forceinline__ void store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/// Waits until all but `kPending` committed stores have read their source.
template <int kPending>
__device__ __forceinline__ void store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

/// Orders this thread's ordinary shared-memory writes before later asynchronous reads of them.
__device__ __forceinline__ void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Orders ordinary accesses of device memory that this thread knows of before its later
/// asynchronous ones. GPUs before Hopper have none of these.
__device__ __forceinline__ void fence_async_global() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}

__device__ __forceinline__ void store_shared(std::uint32_t address, std::uint32_t value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

__device__ __forceinline__ std::uint32_t load_shared(std::uint32_t address) {
  std::uint32_t value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

__device__ __forceinline__ void store_shared_float2(std::uint32_t address, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x), "f"(y) : "memory");
}

__device__ __forceinline__ float2 load_shared_float2(std::uint32_t address) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address) : "memory");
  return x;
}

__device__ __forceinline__ float4 load_shared_float4(std::uint32_t address) {
  float4 x;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(address)
               : "memory");
  return x;
}

/// Stores four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix
/// l / 8.
__device__ __forceinline__ void store_matrix_x4(std::uint32_t address, std::uint32_t a,
                                                std::uint32_t b, std::uint32_t c, std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

}  // namespace magi::ptx
