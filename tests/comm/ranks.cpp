// SPDX-License-Identifier: Apache-2.0
#include "comm/ranks.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <exception>
#include <thread>

#include "comm/engine/ring_group.hpp"
#include "comm/mailbox_group.hpp"
#include "comm/nccl_ranks.hpp"
#include "comm/net/tcp_socket.hpp"

namespace magi::testing {
namespace {

constexpr unsigned kLimitSeconds = 60;

void run_guarded(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "a rank threw: " << error.what();
  }
}

using Group = std::vector<std::unique_ptr<Communicator>>;

Group make_threads(const GroupSetup& setup) {
  return comm::make_thread_group_with(setup.num_ranks, setup.engine());
}

void run_threads(Group group, const RankBody& body) {
  std::vector<std::thread> threads;
  for (auto& member : group) {
    threads.emplace_back([&body, owned = std::move(member)]() mutable {
      // The communicator ends with its thread, as it would with a process.
      const auto communicator = std::move(owned);
      run_guarded([&] { body(*communicator); });
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// A child's whole life. _exit: destructors of the parent's objects are not the child's.
[[noreturn]] void live_as_child(const std::function<void()>& body) {
  alarm(kLimitSeconds);
  run_guarded(body);
  std::fflush(nullptr);
  _exit(::testing::Test::HasFailure() ? 1 : 0);
}

void expect_end(std::int32_t rank, int status, bool is_killed) {
  if (is_killed) {
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "rank " << rank;
    return;
  }
  EXPECT_FALSE(WIFSIGNALED(status)) << "rank " << rank << " ended by signal " << WTERMSIG(status);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "rank " << rank << " failed";
}

}  // namespace

void run_processes(std::int32_t num_ranks, const std::function<void(std::int32_t)>& body,
                   const std::vector<std::int32_t>& killed) {
  std::fflush(nullptr);
  std::vector<pid_t> children;
  for (std::int32_t rank = 0; rank < num_ranks; ++rank) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) live_as_child([&] { body(rank); });
    children.push_back(child);
  }
  for (std::int32_t rank = 0; rank < num_ranks; ++rank) {
    int status = 0;
    waitpid(children[static_cast<std::size_t>(rank)], &status, 0);
    const bool is_killed = std::find(killed.begin(), killed.end(), rank) != killed.end();
    expect_end(rank, status, is_killed);
  }
}

std::string unique_name() {
  static std::atomic<int> count{0};
  return "test-" + std::to_string(getpid()) + "-" + std::to_string(count++);
}

TcpPlace unique_place() {
  const auto listener = comm::listen_tcp(comm::TcpReach::ThisMachine, 0, 1);
  return {.address = "127.0.0.1", .port = comm::port_of(*listener), .name = unique_name()};
}

std::vector<std::byte> bytes_of(std::int32_t rank, std::size_t count) {
  return std::vector<std::byte>(count, static_cast<std::byte>(rank + 1));
}

std::string backend_name(Backend backend) {
  switch (backend) {
    case Backend::Threads:
      return "threads";
    case Backend::Shm:
      return "shm";
    case Backend::Bytes:
      return "bytes";
    case Backend::Nccl:
      return "nccl";
  }
  return "";
}

void run_ranks(Backend backend, const GroupSetup& setup, const RankBody& body) {
  switch (backend) {
    case Backend::Threads:
      return run_threads(make_threads(setup), body);
    case Backend::Bytes:
      return run_threads(make_mailbox_group(setup.num_ranks), body);
    case Backend::Nccl:
      return run_threads(make_threads(setup), [&](Communicator& boot) {
        body(*make_fake_nccl_group(boot, {.deadline = setup.options.deadline}));
      });
    case Backend::Shm:
      break;
  }
  const std::string name = unique_name();
  run_processes(
      setup.num_ranks,
      [&](std::int32_t rank) {
        const auto bootstrap =
            local_bootstrap(name, rank, setup.num_ranks, std::chrono::seconds(20));
        const auto group =
            comm::make_shm_group_with(rank, setup.num_ranks, bootstrap, setup.engine());
        body(*group);
      },
      setup.killed);
}

CommError await_failure(const Communicator& group) {
  return catch_comm_error([&] {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (std::chrono::steady_clock::now() < end) {
      group.check();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
}

}  // namespace magi::testing
