// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// Reads the bytes of a block mask, sixteen at a time. A row of the mask begins at any address, so
// aligned chunks hold bytes of its neighbours too: the bytes first become bits, and shifts drop
// those of other rows.
namespace magi {

inline constexpr std::int32_t kChunkBytes = 16;

/// The whole mask in device memory. Nothing outside of it is read.
struct MaskExtent {
  const std::uint8_t* begin = nullptr;
  const std::uint8_t* end = nullptr;
};

/// The aligned chunks that hold neighbouring bytes of a mask.
class MaskChunks {
 public:
  __device__ __forceinline__ MaskChunks(const std::uint8_t* bytes, std::int32_t num_bytes) {
    const auto address = reinterpret_cast<std::uintptr_t>(bytes);
    num_skipped_ = static_cast<std::int32_t>(address % kChunkBytes);
    num_chunks_ = (num_skipped_ + num_bytes + kChunkBytes - 1) / kChunkBytes;
    chunks_ = reinterpret_cast<const uint4*>(address - address % kChunkBytes);
  }

  __device__ __forceinline__ std::int32_t num_chunks() const { return num_chunks_; }
  /// Bytes of the first chunk before the requested ones.
  __device__ __forceinline__ std::int32_t num_skipped() const { return num_skipped_; }
  /// False: chunks reach beyond the mask, and its bytes must be read one by one.
  __device__ __forceinline__ bool are_inside(const MaskExtent& mask) const {
    return reinterpret_cast<std::uintptr_t>(mask.begin) <=
               reinterpret_cast<std::uintptr_t>(chunks_) &&
           reinterpret_cast<std::uintptr_t>(chunks_ + num_chunks_) <=
               reinterpret_cast<std::uintptr_t>(mask.end);
  }
  /// Chunk `index`; zeros after the last one.
  __device__ __forceinline__ uint4 load(std::int32_t index) const {
    return index < num_chunks_ ? __ldg(chunks_ + index) : uint4{};
  }

 private:
  const uint4* chunks_;
  std::int32_t num_chunks_;
  std::int32_t num_skipped_;
};

/// Bit i: byte i is not 0.
__device__ __forceinline__ unsigned nonzero_bits(const uint4& chunk) {
  const auto tops = [](unsigned word) {
    return (((word & 0x7f7f7f7fu) + 0x7f7f7f7fu) | word) & 0x80808080u;
  };
  // A byte's top bit counts 128 times the weight of its place.
  const unsigned low = __dp4a(tops(chunk.y), 0x80402010u, __dp4a(tops(chunk.x), 0x08040201u, 0u));
  const unsigned high = __dp4a(tops(chunk.w), 0x80402010u, __dp4a(tops(chunk.z), 0x08040201u, 0u));
  return (low | high << 8) >> 7;
}

/// Not 0 if a byte is above 1.
__device__ __forceinline__ unsigned bits_above_one(const uint4& chunk) {
  return (chunk.x | chunk.y | chunk.z | chunk.w) & 0xfefefefeu;
}

/// The lowest `count` bits of a word: none below 0, all from 32 on.
__device__ __forceinline__ unsigned low_bits(std::int32_t count) {
  return static_cast<unsigned>((std::uint64_t{1} << max(0, min(count, 32))) - 1);
}

}  // namespace magi
