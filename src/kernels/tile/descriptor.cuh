// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/ptx/barrier.cuh"

// Shared-memory operands of wgmma. A tile of R rows x D elements of 16 bits is stored as D / 64
// panels of R rows x 128 bytes, 128-byte swizzle, each panel 1024-byte aligned: what load_box
// writes.
namespace magi::tile {

inline constexpr int kPanelElements = 64;
inline constexpr int kPanelRowBytes = 128;
inline constexpr int kSwizzleAtomBytes = 1024;  ///< 8 rows
inline constexpr int kStepElements = 16;        ///< elements of K in one wgmma

/// The 64-bit matrix descriptor: addresses and offsets in units of 16 bytes, swizzle mode 1. Only
/// the low word varies; the address in its low 14 bits never carries into the offset above them.
struct MatrixDescriptor {
  std::uint32_t low;

  __device__ __forceinline__ MatrixDescriptor(const void* start, int leading_bytes)
      : low(((ptx::shared_address(start) >> 4) & 0x3fff) |
            (static_cast<std::uint32_t>(leading_bytes >> 4) << 16)) {}

  __device__ __forceinline__ std::uint64_t at(int bytes) const {
    constexpr std::uint32_t kHigh = (kSwizzleAtomBytes >> 4) | (1u << 30);
    return (static_cast<std::uint64_t>(kHigh) << 32) |
           (low + static_cast<std::uint32_t>(bytes >> 4));
  }
};

/// K-major operand (rows of Q or K, dim contiguous): the offset is along dim.
template <int kRowsPerPanel>
struct KMajor {
  MatrixDescriptor base;

  __device__ __forceinline__ explicit KMajor(const void* start) : base(start, 16) {}

  __device__ __forceinline__ std::uint64_t step(int index) const {
    constexpr int kStepsPerPanel = kPanelElements / kStepElements;
    return base.at((index / kStepsPerPanel) * kRowsPerPanel * kPanelRowBytes +
                   (index % kStepsPerPanel) * 32);
  }
};

/// MN-major operand (V: rows are the summed index, dim is the output column): the offset is along
/// rows.
template <int kRowsPerPanel>
struct MnMajor {
  MatrixDescriptor base;

  __device__ __forceinline__ explicit MnMajor(const void* start)
      : base(start, kRowsPerPanel * kPanelRowBytes) {}

  __device__ __forceinline__ std::uint64_t step(int index) const {
    return base.at(index * kStepElements * kPanelRowBytes);
  }
};

/// Byte offset of 16-byte chunk `chunk` of row `row` in a swizzled panel.
__device__ __forceinline__ std::uint32_t swizzled_offset(int row, int chunk) {
  return static_cast<std::uint32_t>(row * kPanelRowBytes + ((chunk ^ (row & 7)) << 4));
}

}  // namespace magi::tile
