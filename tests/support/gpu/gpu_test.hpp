// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>

#include "base/random.hpp"
#include "cuda/device.hpp"

namespace magi::test {

/// Skips, and says why, where no GPU of compute capability 9.0 is present.
class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device_count() == 0) GTEST_SKIP() << "no GPU here: device test not run";
    if (!device_info(0).is_hopper()) {
      GTEST_SKIP() << "no GPU of compute capability 9.0 here: device test not run";
    }
  }
};

/// How many random masks the mask test draws; --random_masks=N on the command line.
int num_random_masks();
/// The number of the first of them (its seed); --first_mask=N.
int first_random_mask();
/// Calls check(number) for each of them, on all processors at once; stops after a few failures.
void for_each_random_mask(const std::function<void(int)>& check);
/// Calls check with a stream for each of them, likewise; a failure tells its seed.
inline void for_each_random_stream(const std::function<void(RandomStream&)>& check) {
  for_each_random_mask([&](int number) {
    const auto seed = static_cast<std::uint64_t>(number + 1);
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    RandomStream random(seed);
    check(random);
  });
}

}  // namespace magi::test
