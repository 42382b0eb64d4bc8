// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/math.hpp"

namespace magi {

/// Alignment of the parts of an arena, and of a workspace that holds them.
inline constexpr std::size_t kArenaAlignment = 256;

/// Lays out parts of one piece of memory: all parts are added first, then a piece of size_bytes()
/// is taken, in which part_at finds them.
class Arena {
 public:
  /// Returns where `count` elements begin, in bytes from the start of the piece.
  template <typename Element>
  std::size_t add(std::int64_t count) {
    const std::size_t begin = size_bytes_;
    size_bytes_ += align_up(static_cast<std::size_t>(count) * sizeof(Element), kArenaAlignment);
    return begin;
  }
  std::size_t size_bytes() const { return size_bytes_; }

 private:
  std::size_t size_bytes_ = 0;
};

/// The part of an arena that begins `begin` bytes into the piece at `memory`.
template <typename Element>
Element* part_at(void* memory, std::size_t begin) {
  return reinterpret_cast<Element*>(static_cast<std::byte*>(memory) + begin);
}

}  // namespace magi
