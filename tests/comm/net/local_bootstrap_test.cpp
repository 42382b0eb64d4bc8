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

#include "comm/ranks.hpp"

namespace magi::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

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
  const std::string name = unique_name();
  const Squatter first(address_of(name, 0)), second(address_of(name, 1));
  run_processes(3, [&](std::int32_t rank) {
    const Bootstrap bootstrap = local_bootstrap(name, rank, 3, seconds(20));
    EXPECT_EQ(bootstrap(bytes_of(rank, 1)).size(), 3u);
  });
}

TEST(LocalBootstrap, AddressesThatAreAllHeldAreReported) {
  const std::string name = unique_name();
  std::vector<std::unique_ptr<Squatter>> squatters;
  for (int i = 0; i < 8; ++i) {
    squatters.push_back(std::make_unique<Squatter>(address_of(name, i)));
  }
  const auto error = catch_comm_error([&] { local_bootstrap(name, 0, 2, milliseconds(300)); });
  EXPECT_THAT(error.what(), AllOf(HasSubstr("other processes hold the addresses of group"),
                                  HasSubstr("another name is needed")));
}

TEST(LocalBootstrap, AnotherUserWhoListensIsNamedAndPassedBy) {
  if (geteuid() != 0) GTEST_SKIP() << "takes two users";
  const std::string name = unique_name();
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
  const auto error = catch_comm_error([&] { local_bootstrap(name, 1, 2, milliseconds(300)); });
  EXPECT_THAT(error.what(), HasSubstr("process " + std::to_string(other) +
                                      " of user 65534 listens at an address of the group"));
  run_processes(2, [&](std::int32_t rank) {
    EXPECT_EQ(local_bootstrap(name, rank, 2, seconds(20))(bytes_of(rank, 1)).size(), 2u);
  });
  ::kill(other, SIGKILL);
  ::waitpid(other, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(LocalBootstrap, BadArgumentsAreRefused) {
  EXPECT_THAT(refusal_of([] { local_bootstrap("", 0, 1, seconds(1)); }),
              HasSubstr("allowed: 1 to 80 characters"));
  EXPECT_THAT(refusal_of([] { local_bootstrap(std::string(81, 'x'), 0, 1, seconds(1)); }),
              HasSubstr("allowed: 1 to 80 characters"));
  EXPECT_THAT(refusal_of([] { local_bootstrap("x", 2, 2, seconds(1)); }),
              HasSubstr("rank is 2; allowed: 0 to 1"));
  EXPECT_THAT(refusal_of([] { local_bootstrap("x", 0, 0, seconds(1)); }),
              HasSubstr("num_ranks is 0; allowed: 1 to 1024"));
  EXPECT_THAT(refusal_of([] { local_bootstrap("x", 0, 1, seconds(0)); }),
              HasSubstr("deadline is 0 ms"));
}

}  // namespace
}  // namespace magi::testing
