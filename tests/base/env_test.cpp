// SPDX-License-Identifier: Apache-2.0
#include "base/env.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "support/refusal.hpp"

namespace magi {
namespace {

constexpr const char* kNames[] = {"RANK",
                                  "WORLD_SIZE",
                                  "LOCAL_RANK",
                                  "LOCAL_WORLD_SIZE",
                                  "MASTER_ADDR",
                                  "MASTER_PORT",
                                  "TORCHELASTIC_USE_AGENT_STORE",
                                  "OMPI_COMM_WORLD_RANK",
                                  "OMPI_COMM_WORLD_SIZE",
                                  "OMPI_COMM_WORLD_LOCAL_RANK",
                                  "OMPI_COMM_WORLD_LOCAL_SIZE",
                                  "MAGI_LOG_LEVEL",
                                  "MAGI_SHARED_KIB",
                                  kCostFileVariable};

/// Starts and ends without any of the variables.
class Env : public ::testing::Test {
 protected:
  Env() { clear(); }
  ~Env() override { clear(); }
  static void clear() {
    for (const char* name : kNames) unsetenv(name);
  }
  static void set(const char* name, const char* value) { setenv(name, value, 1); }
  static std::string refusal() {
    return testing::refusal_of([] { launch_env(); });
  }
};

TEST_F(Env, NothingIsLaunchedWithoutRankAndSize) { EXPECT_FALSE(launch_env()); }

TEST_F(Env, HalfOfALauncherIsRefused) {
  set("OMPI_COMM_WORLD_SIZE", "3");
  EXPECT_EQ(refusal(),
            "OMPI_COMM_WORLD_RANK is not set; allowed: a rank, as "
            "OMPI_COMM_WORLD_SIZE is 3");
  set("RANK", "1");
  EXPECT_EQ(refusal(), "WORLD_SIZE is not set; allowed: a number of ranks, as RANK is 1");
  set("OMPI_COMM_WORLD_RANK", "2");
  EXPECT_EQ(launch_env()->rank, 2) << "the launcher that tells both";
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

TEST_F(Env, PlaceOfTheMeetingIsRead) {
  set("RANK", "3");
  set("WORLD_SIZE", "4");
  EXPECT_EQ(launch_env()->master_address, "");
  EXPECT_EQ(launch_env()->master_port, 0);
  EXPECT_EQ(launch_env()->num_local_ranks, 0);
  set("LOCAL_RANK", "1");
  set("LOCAL_WORLD_SIZE", "2");
  set("MASTER_ADDR", "node-0");
  set("MASTER_PORT", "29500");
  EXPECT_EQ(launch_env()->local_rank, 1);
  EXPECT_EQ(launch_env()->num_local_ranks, 2);
  EXPECT_EQ(launch_env()->master_address, "node-0");
  EXPECT_EQ(launch_env()->master_port, 29500);
  set("TORCHELASTIC_USE_AGENT_STORE", "True");
  EXPECT_EQ(launch_env()->master_port, 29501);
  set("MASTER_PORT", "65536");
  EXPECT_EQ(refusal(), "MASTER_PORT is 65536; allowed: 1 to 65535");
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

TEST_F(Env, NothingIsLoggedUnlessAskedFor) {
  EXPECT_EQ(log_level_env(), "off");
  set("MAGI_LOG_LEVEL", "debug");
  EXPECT_EQ(log_level_env(), "debug");
}

TEST_F(Env, SharedMemoryIsLimitedOrNot) {
  EXPECT_EQ(shared_kib_env(), 1024);
  set("MAGI_SHARED_KIB", "99");
  EXPECT_EQ(shared_kib_env(), 99);
}

TEST_F(Env, ACostFileIsNamedOrNot) {
  EXPECT_EQ(cost_file_env(), "");
  set("MAGI_ATTENTION_COST_FILE", "/a/path");
  EXPECT_EQ(cost_file_env(), "/a/path");
}

}  // namespace
}  // namespace magi
