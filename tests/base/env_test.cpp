// SPDX-License-Identifier: Apache-2.0
#include "base/env.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "magi/error.hpp"

namespace magi {
namespace {

constexpr const char* kNames[] = {
    "RANK",          "WORLD_SIZE", "MASTER_PORT", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
    "MAGI_LOG_LEVEL"};

/// Starts and ends without any of the variables.
class Env : public testing::Test {
 protected:
  Env() { clear(); }
  ~Env() override { clear(); }
  static void clear() {
    for (const char* name : kNames) unsetenv(name);
  }
  static void set(const char* name, const char* value) { setenv(name, value, 1); }
  static std::string refusal() {
    try {
      launch_env();
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "accepted";
  }
};

TEST_F(Env, NothingIsLaunchedWithoutRankAndSize) {
  EXPECT_FALSE(launch_env());
  set("RANK", "1");
  EXPECT_FALSE(launch_env());
}

TEST_F(Env, TorchrunComesBeforeMpirun) {
  set("OMPI_COMM_WORLD_RANK", "2");
  set("OMPI_COMM_WORLD_SIZE", "3");
  ASSERT_TRUE(launch_env());
  EXPECT_EQ(launch_env()->rank, 2);
  EXPECT_EQ(launch_env()->num_ranks, 3);
  set("RANK", "0");
  set("WORLD_SIZE", "8");
  set("MASTER_PORT", "29500");
  EXPECT_EQ(launch_env()->rank, 0);
  EXPECT_EQ(launch_env()->num_ranks, 8);
  EXPECT_EQ(launch_env()->rendezvous, "29500");
}

TEST_F(Env, BadNumbersAreNamed) {
  set("RANK", "1x");
  set("WORLD_SIZE", "2");
  EXPECT_EQ(refusal(), "RANK is 1x; allowed: an integer");
  set("RANK", "2");
  EXPECT_EQ(refusal(), "RANK is 2; allowed: 0 to 1");
  set("RANK", "-1");
  EXPECT_EQ(refusal(), "RANK is -1; allowed: 0 to 1");
  set("WORLD_SIZE", "0");
  EXPECT_EQ(refusal(), "WORLD_SIZE is 0; allowed: 1 or more");
  set("WORLD_SIZE", "99999999999");
  EXPECT_EQ(refusal(), "WORLD_SIZE is 99999999999; allowed: an integer");
}

TEST_F(Env, WarningsAreLoggedUnlessAskedOtherwise) {
  EXPECT_EQ(log_level_env(), "warn");
  set("MAGI_LOG_LEVEL", "debug");
  EXPECT_EQ(log_level_env(), "debug");
}

}  // namespace
}  // namespace magi
