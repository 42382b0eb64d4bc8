// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "magi/tensor.hpp"

// Matrix products and copies that every GPU has since compute capability 8.0.
namespace magi::ptx {

/// d[16, 8] += A[16, 16] B[16, 8], A by rows and B by columns, as ldmatrix gives them.
template <DType kType>
__device__ __forceinline__ void multiply_add(float* d, const std::uint32_t* a, std::uint32_t b0,
                                             std::uint32_t b1) {
  if constexpr (kType == DType::BFloat16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
        " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
        " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

/// Loads four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix
/// l / 8 and gets two neighbours of row l / 4 of each.
__device__ __forceinline__ void load_matrix_x4(std::uint32_t (&d)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(address)
               : "memory");
}

/// Likewise, each matrix transposed.
__device__ __forceinline__ void load_transposed_x4(std::uint32_t (&d)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(address)
               : "memory");
}

/// Copies 16 bytes to shared memory, or writes as many zeros and reads nothing.
__device__ __forceinline__ void copy_or_clear(std::uint32_t destination, const void* source,
                                              bool is_there) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(destination),
               "l"(source), "r"(is_there ? 16 : 0)
               : "memory");
}

/// Waits for all such copies of this thread.
__device__ __forceinline__ void copy_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace magi::ptx
