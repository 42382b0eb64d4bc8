// SPDX-License-Identifier: Apache-2.0
#include "comm/net/failure_channel.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>

namespace magi::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Deadline soon() { return std::chrono::steady_clock::now() + seconds(5); }

/// The lines of a group, all in this thread; ranks >= num_connected are out of reach.
std::vector<std::unique_ptr<FailureChannel>> make_lines(std::int32_t num_ranks,
                                                        std::int32_t num_connected,
                                                        TcpReach reach) {
  std::vector<std::unique_ptr<FailureChannel>> lines;
  std::vector<bool> is_connected;
  for (std::int32_t rank = 0; rank < num_ranks; ++rank) {
    lines.push_back(std::make_unique<FailureChannel>(rank, num_ranks));
    is_connected.push_back(rank < num_connected);
  }
  const auto invitation = lines[0]->open(reach);
  for (std::int32_t rank = 1; rank < num_connected; ++rank) {
    EXPECT_TRUE(lines[static_cast<std::size_t>(rank)]->connect(invitation, true, soon()));
  }
  lines[0]->accept(is_connected, soon());
  return lines;
}

std::optional<CommError> next(FailureChannel& line) { return line.listen(milliseconds(5000)); }

TEST(FailureChannel, NewsReachRankZeroAndFromThereAll) {
  const auto lines = make_lines(3, 3, TcpReach::ThisMachine);
  lines[2]->report({"rank 2 aborted: a reason", CommFailure::Aborted});
  const auto heard = next(*lines[0]);
  ASSERT_TRUE(heard);
  EXPECT_STREQ(heard->what(), "rank 2 aborted: a reason");
  EXPECT_EQ(heard->failure(), CommFailure::Aborted);
  lines[0]->report(*heard);
  const auto passed_on = next(*lines[1]);
  ASSERT_TRUE(passed_on);
  EXPECT_STREQ(passed_on->what(), heard->what());
}

TEST(FailureChannel, EndOfAProcessIsHeard) {
  auto lines = make_lines(3, 3, TcpReach::AnyMachine);
  lines[0]->name_ranks({"rank 0 on a", "rank 1 on b", "rank 2 on b"});
  lines[1].reset();
  const auto heard = next(*lines[0]);
  ASSERT_TRUE(heard);
  EXPECT_EQ(heard->failure(), CommFailure::PeerDied);
  EXPECT_THAT(heard->what(), ::testing::HasSubstr("rank 1 on b ended"));
  lines[0].reset();
  EXPECT_THAT(next(*lines[2])->what(), ::testing::HasSubstr("rank 0 ended"));
}

TEST(FailureChannel, WhoLeavesInOrderIsNotMissed) {
  auto lines = make_lines(2, 2, TcpReach::ThisMachine);
  lines[1]->leave();
  lines[1].reset();
  EXPECT_FALSE(lines[0]->listen(milliseconds(200)));
  EXPECT_FALSE(lines[0]->listen(milliseconds(1)));
}

TEST(FailureChannel, RanksOutOfReachAreLeftOut) {
  const auto lines = make_lines(3, 2, TcpReach::ThisMachine);
  lines[0]->report({"text", CommFailure::System});
  EXPECT_TRUE(next(*lines[1]));
  EXPECT_FALSE(lines[2]->listen(milliseconds(1)));
}

TEST(FailureChannel, NoOneListensAtAPortOfNoGroup) {
  FailureChannel line(1, 2);
  EXPECT_FALSE(line.connect({.port = 1}, true, soon()));
  EXPECT_FALSE(line.connect({.port = 1}, false, soon()));
}

TEST(FailureChannel, StrangersAreTurnedAway) {
  FailureChannel host(0, 2), rank(1, 2);
  const auto invitation = host.open(TcpReach::ThisMachine);
  auto forged = invitation;
  forged.secret[0] ^= std::byte{1};
  FailureChannel stranger(1, 2);
  EXPECT_TRUE(stranger.connect(forged, true, soon()));
  EXPECT_TRUE(rank.connect(invitation, true, soon()));
  host.accept({true, true}, soon());
  rank.report({"of the group", CommFailure::Aborted});
  EXPECT_STREQ(next(host)->what(), "of the group");
}

TEST(FailureChannel, AnotherThreadEndsAWait) {
  FailureChannel line(0, 1);
  std::jthread waker([&] { line.wake(); });
  EXPECT_FALSE(line.listen(seconds(60)));
}

}  // namespace
}  // namespace magi::comm
