// SPDX-License-Identifier: Apache-2.0
#include "capi/work_cache.hpp"

#include <gtest/gtest.h>

namespace magi::capi {
namespace {

struct Made {
  int number = 0;
};

std::shared_ptr<const Made> make(int number) { return std::make_shared<const Made>(Made{number}); }

WorkKey key_of(std::int64_t rows) { return {.q = {rows, 4, 128}}; }

TEST(WorkCache, MakesWhatIsNewAndFindsItAgain) {
  WorkCache<Made> cache;
  int made = 0;
  const auto get = [&](const WorkKey& key) {
    return cache.find_or_make(key, [&] { return make(++made); })->number;
  };
  EXPECT_EQ(get(key_of(1)), 1);
  EXPECT_EQ(get(key_of(1)), 1);
  WorkKey other = key_of(1);
  other.sm_margin = 8;
  EXPECT_EQ(get(other), 2);
  other.device = 1;
  EXPECT_EQ(get(other), 3);
  other.backend = "another";
  EXPECT_EQ(get(other), 4);
  EXPECT_EQ(get(key_of(1)), 1);
}

TEST(WorkCache, GivesUpWhatWasUsedLongestAgo) {
  WorkCache<Made> cache;
  int made = 0;
  const auto get = [&](std::int64_t rows) {
    return cache.find_or_make(key_of(rows), [&] { return make(++made); });
  };
  const auto kept = get(1);
  constexpr auto kCapacity = static_cast<std::int64_t>(WorkCache<Made>::kCapacity);
  for (std::int64_t rows = 2; rows <= kCapacity; ++rows) get(rows);
  get(1);
  get(kCapacity + 1);
  EXPECT_EQ(cache.size(), WorkCache<Made>::kCapacity);
  EXPECT_EQ(get(1)->number, 1);
  EXPECT_GT(get(2)->number, static_cast<int>(kCapacity) + 1);
  EXPECT_EQ(kept->number, 1);
}

TEST(WorkCache, AFailureLeavesNothing) {
  WorkCache<Made> cache;
  EXPECT_THROW(cache.find_or_make(key_of(1), []() -> std::shared_ptr<const Made> { throw 1; }),
               int);
  EXPECT_EQ(cache.size(), 0u);
}

}  // namespace
}  // namespace magi::capi
