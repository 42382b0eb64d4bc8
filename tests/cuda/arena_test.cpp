// SPDX-License-Identifier: Apache-2.0
#include "cuda/arena.hpp"

#include <gtest/gtest.h>

namespace magi {
namespace {

TEST(Arena, PartsAreAlignedAndDoNotOverlap) {
  Arena arena;
  EXPECT_EQ(arena.add<float>(1), 0u);
  EXPECT_EQ(arena.add<std::byte>(257), 256u);
  EXPECT_EQ(arena.add<double>(32), 768u);
  EXPECT_EQ(arena.size_bytes(), 1024u);
}

TEST(Arena, APartOfNothingTakesNothing) {
  Arena arena;
  EXPECT_EQ(arena.size_bytes(), 0u);
  EXPECT_EQ(arena.add<double>(0), 0u);
  EXPECT_EQ(arena.add<float>(64), 0u);
  EXPECT_EQ(arena.add<float>(0), 256u);
  EXPECT_EQ(arena.size_bytes(), 256u);
}

TEST(Arena, PartsAreFoundInThePiece) {
  alignas(256) std::byte piece[512] = {};
  EXPECT_EQ(static_cast<void*>(part_at<float>(piece, 256)), piece + 256);
}

}  // namespace
}  // namespace magi
