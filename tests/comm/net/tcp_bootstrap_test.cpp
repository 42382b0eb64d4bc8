// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "comm/net/bootstrap_checks.hpp"
#include "comm/net/tcp_socket.hpp"
#include "comm/ranks.hpp"

namespace magi {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using testing::bytes_of;
using ::testing::HasSubstr;
using testing::invalid_argument;

/// Where no other test meets.
TcpPlace unique_place() {
  const auto listener = comm::listen_tcp(comm::TcpReach::ThisMachine, 0, 1);
  return {.address = "127.0.0.1", .port = comm::port_of(*listener), .name = testing::unique_name()};
}

TEST(TcpBootstrap, GathersInRankOrderWhoeverComesFirst) {
  for (const char* host : {"127.0.0.1", "localhost"}) {
    TcpPlace place = unique_place();
    place.address = host;
    testing::run_processes(4, [&](std::int32_t rank) {
      std::this_thread::sleep_for(milliseconds((7 - 2 * rank) * 20));
      testing::expect_rank_order(tcp_bootstrap(place, rank, 4, seconds(20)), rank, 4);
    });
  }
}

TEST(TcpBootstrap, PortsThatOthersHoldArePassedBy) {
  const TcpPlace place = unique_place();
  // A service that never speaks, as the store of a launcher.
  const auto silent = comm::listen_tcp(comm::TcpReach::ThisMachine, place.port, 8);
  ASSERT_TRUE(silent);
  testing::run_processes(3, [&](std::int32_t rank) {
    const auto all = tcp_bootstrap(place, rank, 3, seconds(20))(bytes_of(rank, 2));
    EXPECT_EQ(all[2], bytes_of(2, 2));
  });
}

TEST(TcpBootstrap, GroupsOfOtherNamesPassByEachOther) {
  const TcpPlace place = unique_place();
  testing::run_processes(4, [&](std::int32_t process) {
    TcpPlace own = place;
    own.name += process / 2 == 0 ? "a" : "b";
    const std::int32_t rank = process % 2;
    const auto all = tcp_bootstrap(own, rank, 2, seconds(20))(bytes_of(process, 1));
    EXPECT_EQ(all[0], bytes_of(process - rank, 1));
    EXPECT_EQ(all[1], bytes_of(process - rank + 1, 1));
  });
}

TEST(TcpBootstrap, MissingRanksAreNamedToEveryone) {
  const TcpPlace place = unique_place();
  testing::run_processes(5, [&](std::int32_t rank) {
    if (rank == 2 || rank == 4) return;
    const auto error =
        testing::catch_comm_error([&] { tcp_bootstrap(place, rank, 5, milliseconds(900)); });
    EXPECT_EQ(error.failure(), CommFailure::Timeout);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 2, rank 4 of group '" + place.name + "'"),
                                    HasSubstr("did not arrive within 900 ms")));
  });
}

TEST(TcpBootstrap, MissingRankZeroIsNamed) {
  const auto error = testing::catch_comm_error(
      [place = unique_place()] { tcp_bootstrap(place, 1, 2, milliseconds(100)); });
  EXPECT_EQ(error.failure(), CommFailure::Timeout);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 0"), HasSubstr("did not arrive within 100 ms")));
}

TEST(TcpBootstrap, RankClaimedTwiceIsRefusedEverywhere) {
  const TcpPlace place = unique_place();
  testing::run_processes(3, [&](std::int32_t process) {
    const std::int32_t rank = process == 0 ? 0 : 1;
    EXPECT_THAT(invalid_argument([&] { tcp_bootstrap(place, rank, 3, seconds(20)); }),
                AllOf(HasSubstr("rank is 1"), HasSubstr("the process at 127.0.0.1"),
                      HasSubstr("allowed: each rank once")));
  });
}

TEST(TcpBootstrap, RankZeroClaimedTwiceIsRefused) {
  const TcpPlace place = unique_place();
  testing::run_processes(2, [&](std::int32_t process) {
    if (process == 1) std::this_thread::sleep_for(milliseconds(300));
    const std::string text =
        invalid_argument([&] { tcp_bootstrap(place, 0, 2, milliseconds(1500)); });
    if (process == 1) {
      EXPECT_THAT(text, HasSubstr("rank is 0"));
    }
  });
}

TEST(TcpBootstrap, OtherNumberOfRanksIsRefusedEverywhere) {
  const TcpPlace place = unique_place();
  testing::run_processes(2, [&](std::int32_t rank) {
    EXPECT_THAT(
        invalid_argument([&] { tcp_bootstrap(place, rank, rank == 0 ? 3 : 2, seconds(20)); }),
        AllOf(HasSubstr("num_ranks is 2"), HasSubstr("allowed: 3")));
  });
}

TEST(TcpBootstrap, RankThatDiesBetweenCallsIsReportedToEveryone) {
  const TcpPlace place = unique_place();
  testing::run_processes(3,
                         [&](std::int32_t rank) {
                           const Bootstrap bootstrap = tcp_bootstrap(place, rank, 3, seconds(20));
                           bootstrap({});
                           if (rank == 2) raise(SIGKILL);
                           const auto error = testing::catch_comm_error([&] { bootstrap({}); });
                           EXPECT_EQ(error.failure(), CommFailure::PeerDied);
                           EXPECT_THAT(error.what(), HasSubstr("rank 2"));
                         },
                         {2});
}

TEST(TcpBootstrap, BadArgumentsAreRefused) {
  const auto refusal = [](TcpPlace place, std::int32_t rank) {
    return invalid_argument([&] { tcp_bootstrap(place, rank, 2, seconds(1)); });
  };
  EXPECT_THAT(refusal({"127.0.0.1", 0}, 1), HasSubstr("port is 0; allowed: 1 to 65535"));
  EXPECT_THAT(refusal({"127.0.0.1", 4711, ""}, 1), HasSubstr("allowed: 1 to 80 characters"));
  EXPECT_THAT(refusal({"no.such.host.invalid", 4711}, 1),
              HasSubstr("address is 'no.such.host.invalid'; allowed: the name or number"));
  EXPECT_THAT(refusal({"127.0.0.1", 4711}, 2), HasSubstr("rank is 2; allowed: 0 to 1"));
}

}  // namespace
}  // namespace magi
