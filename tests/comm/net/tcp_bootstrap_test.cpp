// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "comm/net/tcp_socket.hpp"
#include "comm/ranks.hpp"

namespace magi::testing {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

TEST(TcpBootstrap, RankZeroIsFoundByItsHostsName) {
  TcpPlace place = unique_place();
  place.address = "localhost";
  run_processes(2, [&](std::int32_t rank) {
    EXPECT_EQ(tcp_bootstrap(place, rank, 2, seconds(20))({}).size(), 2U);
  });
}

TEST(TcpBootstrap, PortsThatOthersHoldArePassedBy) {
  const TcpPlace place = unique_place();
  // A service that never speaks, as the store of a launcher.
  const auto silent = comm::listen_tcp(comm::TcpReach::ThisMachine, place.port, 8);
  ASSERT_TRUE(silent);
  run_processes(3, [&](std::int32_t rank) {
    const auto all = tcp_bootstrap(place, rank, 3, seconds(20))(bytes_of(rank, 2));
    EXPECT_EQ(all[2], bytes_of(2, 2));
  });
}

TEST(TcpBootstrap, GroupsOfOtherNamesPassByEachOther) {
  const TcpPlace place = unique_place();
  run_processes(4, [&](std::int32_t process) {
    TcpPlace own = place;
    own.name += process / 2 == 0 ? "a" : "b";
    const std::int32_t rank = process % 2;
    const auto all = tcp_bootstrap(own, rank, 2, seconds(20))(bytes_of(process, 1));
    EXPECT_EQ(all[0], bytes_of(process - rank, 1));
    EXPECT_EQ(all[1], bytes_of(process - rank + 1, 1));
  });
}

TEST(TcpBootstrap, BadArgumentsAreRefused) {
  const auto refusal = [](TcpPlace place, std::int32_t rank) {
    return refusal_of([&] { tcp_bootstrap(place, rank, 2, seconds(1)); });
  };
  EXPECT_THAT(refusal({"127.0.0.1", 0}, 1), HasSubstr("port is 0; allowed: 1 to 65535"));
  EXPECT_THAT(refusal({"127.0.0.1", 4711, ""}, 1), HasSubstr("allowed: 1 to 80 characters"));
  EXPECT_THAT(refusal({"no.such.host.invalid", 4711}, 1),
              HasSubstr("address is 'no.such.host.invalid'; allowed: the name or number"));
  EXPECT_THAT(refusal({"127.0.0.1", 4711}, 2), HasSubstr("rank is 2; allowed: 0 to 1"));
}

}  // namespace
}  // namespace magi::testing
