// SPDX-License-Identifier: Apache-2.0
#include "comm/net/meeting.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "comm/ranks.hpp"

// What is the same for ranks that meet at any place.
namespace magi::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

enum class Place { Local, Tcp };

class Meeting : public ::testing::TestWithParam<Place> {
 protected:
  /// The bootstrap of a rank at this test's place.
  Bootstrap meet(std::int32_t rank, std::int32_t num_ranks, milliseconds deadline) const {
    if (GetParam() == Place::Tcp) return tcp_bootstrap(place_, rank, num_ranks, deadline);
    return local_bootstrap(place_.name, rank, num_ranks, deadline);
  }
  const TcpPlace place_ = unique_place();
};

INSTANTIATE_TEST_SUITE_P(Places, Meeting, ::testing::Values(Place::Local, Place::Tcp),
                         [](const auto& test) {
                           return test.param == Place::Local ? "local" : "tcp";
                         });

TEST_P(Meeting, GathersInRankOrderWhoeverComesFirst) {
  run_processes(4, [&](std::int32_t rank) {
    std::this_thread::sleep_for(milliseconds((7 - 2 * rank) * 20));
    const Bootstrap bootstrap = meet(rank, 4, seconds(20));
    for (const std::size_t scale : {std::size_t{0}, std::size_t{3}, std::size_t{500'000}}) {
      const auto all = bootstrap(bytes_of(rank, scale * static_cast<std::size_t>(rank)));
      ASSERT_EQ(all.size(), 4U);
      for (std::int32_t other = 0; other < 4; ++other) {
        const auto o = static_cast<std::size_t>(other);
        EXPECT_EQ(all[o], bytes_of(other, scale * o));
      }
    }
  });
}

TEST_P(Meeting, MissingRanksAreNamedToEveryone) {
  run_processes(5, [&](std::int32_t rank) {
    if (rank == 2 || rank == 4) return;
    const auto error = catch_comm_error([&] { meet(rank, 5, milliseconds(500)); });
    EXPECT_EQ(error.failure(), CommFailure::Timeout);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 2, rank 4 of group '" + place_.name + "'"),
                                    HasSubstr("did not arrive within 500 ms")));
  });
}

TEST_P(Meeting, MissingRankZeroIsNamed) {
  const auto error = catch_comm_error([&] { meet(1, 2, milliseconds(100)); });
  EXPECT_EQ(error.failure(), CommFailure::Timeout);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 0"), HasSubstr("did not arrive within 100 ms")));
  if (GetParam() == Place::Local) return;
  EXPECT_THAT(error.what(), HasSubstr("was waiting for it at " + place_.address + ", ports "));
}

TEST_P(Meeting, RankClaimedTwiceIsRefusedEverywhere) {
  // Processes 1 and 2 both claim rank 1; rank 2 never comes, so that the meeting is still on.
  run_processes(3, [&](std::int32_t process) {
    EXPECT_THAT(refusal_of([&] { meet(process == 0 ? 0 : 1, 3, seconds(20)); }),
                AllOf(HasSubstr("rank is 1"), HasSubstr("allowed: each rank once"),
                      HasSubstr(GetParam() == Place::Tcp ? "the process at 127.0.0.1 port"
                                                         : "in process ")));
  });
}

TEST_P(Meeting, RankZeroClaimedTwiceIsRefused) {
  run_processes(2, [&](std::int32_t process) {
    const auto claim = [&] { meet(0, 2, milliseconds(700)); };
    if (process == 0) {
      EXPECT_ANY_THROW(claim());  // rank 1 never comes
    } else {
      std::this_thread::sleep_for(milliseconds(300));
      EXPECT_THAT(refusal_of(claim), HasSubstr("rank is 0"));
    }
  });
}

TEST_P(Meeting, OtherNumberOfRanksIsRefusedEverywhere) {
  run_processes(2, [&](std::int32_t rank) {
    EXPECT_THAT(refusal_of([&] { meet(rank, rank == 0 ? 3 : 2, seconds(20)); }),
                AllOf(HasSubstr("num_ranks is 2"), HasSubstr("allowed: 3")));
  });
}

TEST_P(Meeting, RankThatDiesBetweenCallsIsReportedToEveryone) {
  run_processes(3,
                [&](std::int32_t rank) {
                  const Bootstrap bootstrap = meet(rank, 3, seconds(20));
                  bootstrap({});
                  if (rank == 2) raise(SIGKILL);
                  const auto error = catch_comm_error([&] { bootstrap({}); });
                  EXPECT_EQ(error.failure(), CommFailure::PeerDied);
                  const bool is_tcp = GetParam() == Place::Tcp;
                  EXPECT_THAT(error.what(),
                              HasSubstr(is_tcp ? "rank 2 (the process at 127.0.0.1 port "
                                               : "rank 2 (process "));
                },
                {2});
}

TEST_P(Meeting, OneRankNeedsNobody) {
  const auto all = meet(0, 1, seconds(1))(bytes_of(0, 3));
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0], bytes_of(0, 3));
}

}  // namespace
}  // namespace magi::testing
