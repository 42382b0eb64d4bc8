// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <memory>
#include <thread>

#include "comm/net/bootstrap_checks.hpp"
#include "comm/ranks.hpp"

namespace magi {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using testing::bytes_of;
using ::testing::HasSubstr;
using testing::invalid_argument;

TEST(LocalBootstrap, GathersInRankOrderWhoeverComesFirst) {
  const std::string name = testing::unique_name();
  testing::run_processes(4, [&](std::int32_t rank) {
    std::this_thread::sleep_for(milliseconds((7 - 2 * rank) * 20));
    testing::expect_rank_order(local_bootstrap(name, rank, 4, seconds(20)), rank, 4);
  });
}

TEST(LocalBootstrap, OneRankNeedsNobody) {
  const Bootstrap bootstrap = local_bootstrap(testing::unique_name(), 0, 1, seconds(1));
  const auto all = bootstrap(bytes_of(0, 3));
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0], bytes_of(0, 3));
}

TEST(LocalBootstrap, MissingRanksAreNamedToEveryone) {
  const std::string name = testing::unique_name();
  testing::run_processes(5, [&](std::int32_t rank) {
    if (rank == 2 || rank == 4) return;
    const auto error =
        testing::catch_comm_error([&] { local_bootstrap(name, rank, 5, milliseconds(400)); });
    EXPECT_EQ(error.failure(), CommFailure::Timeout);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 2, rank 4 of group '" + name + "'"),
                                    HasSubstr("did not arrive within 400 ms")));
  });
}

TEST(LocalBootstrap, MissingRankZeroIsNamed) {
  const auto error = testing::catch_comm_error(
      [] { local_bootstrap(testing::unique_name(), 1, 2, milliseconds(100)); });
  EXPECT_EQ(error.failure(), CommFailure::Timeout);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 0"), HasSubstr("did not arrive within 100 ms")));
}

TEST(LocalBootstrap, RankClaimedTwiceIsRefusedEverywhere) {
  const std::string name = testing::unique_name();
  // Processes 1 and 2 both claim rank 1; rank 2 never comes, so that the meeting is still on.
  testing::run_processes(3, [&](std::int32_t process) {
    const std::int32_t rank = process == 0 ? 0 : 1;
    EXPECT_THAT(invalid_argument([&] { local_bootstrap(name, rank, 3, seconds(20)); }),
                AllOf(HasSubstr("rank is 1"), HasSubstr("allowed: each rank once")));
  });
}

TEST(LocalBootstrap, RankZeroClaimedTwiceIsRefused) {
  const std::string name = testing::unique_name();
  testing::run_processes(2, [&](std::int32_t process) {
    if (process == 1) std::this_thread::sleep_for(milliseconds(200));
    const std::string text =
        invalid_argument([&] { local_bootstrap(name, 0, 2, milliseconds(600)); });
    if (process == 1) {
      EXPECT_THAT(text, HasSubstr("rank is 0"));
    }
  });
}

TEST(LocalBootstrap, OtherNumberOfRanksIsRefusedEverywhere) {
  const std::string name = testing::unique_name();
  testing::run_processes(2, [&](std::int32_t rank) {
    EXPECT_THAT(
        invalid_argument([&] { local_bootstrap(name, rank, rank == 0 ? 3 : 2, seconds(20)); }),
        AllOf(HasSubstr("num_ranks is 2"), HasSubstr("allowed: 3")));
  });
}

TEST(LocalBootstrap, RankThatDiesBetweenCallsIsReportedToEveryone) {
  const std::string name = testing::unique_name();
  testing::run_processes(3,
                         [&](std::int32_t rank) {
                           const Bootstrap bootstrap = local_bootstrap(name, rank, 3, seconds(20));
                           bootstrap({});
                           if (rank == 2) raise(SIGKILL);
                           const auto error = testing::catch_comm_error([&] { bootstrap({}); });
                           EXPECT_EQ(error.failure(), CommFailure::PeerDied);
                           EXPECT_THAT(error.what(), HasSubstr("rank 2"));
                         },
                         {2});
}

/// The address that rank 0 of a group takes if it is free, and those after it.
std::string address_of(const std::string& name, int choice) {
  return "magi/" + std::to_string(geteuid()) + "." + std::to_string(choice) + "/" + name;
}

/// Binds an abstract name, without listening there.
class Squatter {
 public:
  explicit Squatter(const std::string& address) : fd_(::socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un data{};
    data.sun_family = AF_UNIX;
    std::memcpy(data.sun_path + 1, address.data(), address.size());
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + address.size());
    EXPECT_EQ(::bind(fd_, reinterpret_cast<const sockaddr*>(&data), size), 0);
  }
  ~Squatter() { ::close(fd_); }
  Squatter(const Squatter&) = delete;
  Squatter& operator=(const Squatter&) = delete;

  void listen() const { EXPECT_EQ(::listen(fd_, 8), 0); }

 private:
  int fd_;
};

TEST(LocalBootstrap, RanksMeetWhereAnotherHoldsTheFirstAddresses) {
  const std::string name = testing::unique_name();
  const Squatter first(address_of(name, 0)), second(address_of(name, 1));
  testing::run_processes(3, [&](std::int32_t rank) {
    const Bootstrap bootstrap = local_bootstrap(name, rank, 3, seconds(20));
    EXPECT_EQ(bootstrap(bytes_of(rank, 1)).size(), 3u);
  });
}

TEST(LocalBootstrap, AddressesThatAreAllHeldAreReported) {
  const std::string name = testing::unique_name();
  std::vector<std::unique_ptr<Squatter>> squatters;
  for (int i = 0; i < 8; ++i) {
    squatters.push_back(std::make_unique<Squatter>(address_of(name, i)));
  }
  const auto error =
      testing::catch_comm_error([&] { local_bootstrap(name, 0, 2, milliseconds(300)); });
  EXPECT_THAT(error.what(), AllOf(HasSubstr("other processes hold the addresses of group"),
                                  HasSubstr("another name is needed")));
}

TEST(LocalBootstrap, AnotherUserWhoListensIsNamedAndPassedBy) {
  if (geteuid() != 0) GTEST_SKIP() << "takes two users";
  const std::string name = testing::unique_name();
  const std::string address = address_of(name, 0);
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t other = ::fork();
  if (other == 0) {
    if (::setuid(65534) != 0) ::_exit(1);
    const Squatter squatter(address);
    squatter.listen();
    ::_exit(::write(ready[1], "x", 1) == 1 ? ::pause() : 1);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  const auto error =
      testing::catch_comm_error([&] { local_bootstrap(name, 1, 2, milliseconds(300)); });
  EXPECT_THAT(error.what(), HasSubstr("process " + std::to_string(other) +
                                      " of user 65534 listens at an address of the group"));
  testing::run_processes(2, [&](std::int32_t rank) {
    EXPECT_EQ(local_bootstrap(name, rank, 2, seconds(20))(bytes_of(rank, 1)).size(), 2u);
  });
  ::kill(other, SIGKILL);
  ::waitpid(other, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(LocalBootstrap, BadArgumentsAreRefused) {
  EXPECT_THAT(invalid_argument([] { local_bootstrap("", 0, 1, seconds(1)); }),
              HasSubstr("allowed: 1 to 80 characters"));
  EXPECT_THAT(invalid_argument([] { local_bootstrap(std::string(81, 'x'), 0, 1, seconds(1)); }),
              HasSubstr("allowed: 1 to 80 characters"));
  EXPECT_THAT(invalid_argument([] { local_bootstrap("x", 2, 2, seconds(1)); }),
              HasSubstr("rank is 2; allowed: 0 to 1"));
  EXPECT_THAT(invalid_argument([] { local_bootstrap("x", 0, 0, seconds(1)); }),
              HasSubstr("num_ranks is 0; allowed: 1 to 1024"));
  EXPECT_THAT(invalid_argument([] { local_bootstrap("x", 0, 1, seconds(0)); }),
              HasSubstr("deadline is 0 ms"));
}

}  // namespace
}  // namespace magi
