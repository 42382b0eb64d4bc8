// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "comm/net/tcp_socket.hpp"
#include "comm/ranks.hpp"

// Ranks that find each other by a launcher's variables; in forked processes, whose variables are
// their own.
namespace magi {
namespace {

using std::chrono::seconds;

void set(const char* name, std::int64_t value) { setenv(name, std::to_string(value).c_str(), 1); }

/// The variables of a rank that mpirun starts, `local_size` of them on this machine.
void set_mpirun(std::int32_t rank, std::int32_t size, std::int32_t local_size) {
  unsetenv("RANK");
  unsetenv("MASTER_ADDR");
  set("OMPI_COMM_WORLD_RANK", rank);
  set("OMPI_COMM_WORLD_SIZE", size);
  set("OMPI_COMM_WORLD_LOCAL_RANK", rank);
  set("OMPI_COMM_WORLD_LOCAL_SIZE", local_size);
}

void expect_meeting(std::int32_t rank, std::int32_t num_ranks) {
  const auto launch = join_launch(seconds(20));
  ASSERT_TRUE(launch);
  EXPECT_EQ(launch->rank, rank);
  EXPECT_EQ(launch->num_ranks, num_ranks);
  EXPECT_EQ(launch->local_rank, rank);
  const std::vector<std::byte> own(1, static_cast<std::byte>(rank));
  const auto all = launch->bootstrap(own);
  ASSERT_EQ(all.size(), static_cast<std::size_t>(num_ranks));
  for (std::size_t other = 0; other < all.size(); ++other) {
    EXPECT_EQ(all[other], std::vector<std::byte>(1, static_cast<std::byte>(other)));
  }
}

TEST(Launch, NothingWithoutALauncher) {
  testing::run_processes(1, [](std::int32_t) {
    for (const char* name :
         {"RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}) {
      unsetenv(name);
    }
    EXPECT_FALSE(join_launch(seconds(1)));
  });
}

TEST(Launch, TorchrunsRanksMeetBesideItsStore) {
  const auto store = comm::listen_tcp(comm::TcpReach::ThisMachine, 0, 8);
  const std::int32_t port = comm::port_of(*store);
  testing::run_processes(3, [&](std::int32_t rank) {
    set("RANK", rank);
    set("WORLD_SIZE", 3);
    set("LOCAL_RANK", rank);
    setenv("MASTER_ADDR", "localhost", 1);
    set("MASTER_PORT", port);
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    expect_meeting(rank, 3);
  });
}

TEST(Launch, MpirunsRanksOfOneMachineNeedNoAddress) {
  const std::string job = testing::unique_name();
  testing::run_processes(2, [&](std::int32_t rank) {
    set_mpirun(rank, 2, 2);
    setenv("OMPI_MCA_ess_base_jobid", job.c_str(), 1);
    expect_meeting(rank, 2);
  });
}

TEST(Launch, MpirunsRanksOfSeveralMachinesMeetAtTheAddress) {
  const std::int32_t port = testing::unique_place().port;
  testing::run_processes(2, [&](std::int32_t rank) {
    set_mpirun(rank, 2, 1);
    setenv("MASTER_ADDR", "localhost", 1);
    set("MASTER_PORT", port);
    expect_meeting(rank, 2);
  });
}

TEST(Launch, SeveralMachinesNeedAnAddress) {
  testing::run_processes(1, [](std::int32_t) {
    set_mpirun(0, 4, 2);
    EXPECT_THAT(testing::refusal_of([] { join_launch(seconds(1)); }),
                ::testing::StartsWith("MASTER_ADDR is not set; allowed: "));
  });
}

}  // namespace
}  // namespace magi
