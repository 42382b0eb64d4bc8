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

#include "comm/window_group.hpp"

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

void run_threads(const GroupSetup& setup, const RankBody& body) {
  std::vector<comm::EngineOptions> options;
  for (std::int32_t rank = 0; rank < setup.num_ranks; ++rank) {
    options.push_back(setup.engine(rank));
  }
  auto group = comm::make_thread_group_with(options);
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

}  // namespace

std::string backend_name(Backend backend) {
  switch (backend) {
    case Backend::Threads:
      return "threads";
    case Backend::Shm:
      return "shm";
    case Backend::Vtable:
      return "vtable";
  }
  return "";
}

comm::EngineOptions GroupSetup::engine(std::int32_t rank) const {
  return {.comm = options,
          .max_ring_bytes = max_ring_bytes,
          .fault = rank == faulty_rank ? fault : comm::Fault{}};
}

void run_ranks(Backend backend, const GroupSetup& setup, const RankBody& body) {
  switch (backend) {
    case Backend::Threads:
    case Backend::Shm:
    case Backend::Vtable:
      return run_threads(setup, body);
  }
}

CommError catch_comm_error(const std::function<void()>& call) {
  try {
    call();
  } catch (const CommError& error) {
    return error;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "expected a CommError, got: " << error.what();
    return CommError("", CommFailure::System);
  }
  ADD_FAILURE() << "expected a CommError, nothing was thrown";
  return CommError("", CommFailure::System);
}

}  // namespace magi::testing
