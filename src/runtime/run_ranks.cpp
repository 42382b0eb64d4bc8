// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <exception>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "base/check.hpp"
#include "comm/rows/abort_group.hpp"
#include "kernels/cpu/attention.hpp"
#include "magi/runtime.hpp"

namespace magi {
namespace {

bool is_abort(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const CommError& error) {
    return error.failure() == CommFailure::Aborted;
  } catch (...) {
    return false;
  }
}

void run_one(Communicator& communicator, const std::function<void(Communicator&)>& body,
             std::exception_ptr& failure) {
  // The ranks share the machine: each takes its part of the cores.
  const auto num_cores = static_cast<std::int32_t>(std::thread::hardware_concurrency());
  cpu::set_num_threads(std::max(1, num_cores / communicator.num_ranks()));
  try {
    body(communicator);
  } catch (const std::exception& error) {
    failure = std::current_exception();
    abort_group(communicator, error.what());
  } catch (...) {
    failure = std::current_exception();
    abort_group(communicator, "an exception of unknown type");
  }
}

/// If the thread of a rank cannot start, those of others are woken, as they would wait for it.
template <typename Run>
void start_thread(Communicator& communicator, std::vector<std::jthread>& threads, const Run& run) {
  try {
    abort_group_on_error(communicator, [&] { threads.emplace_back(run); });
  } catch (const std::system_error& error) {
    throw CommError("the thread of rank " + std::to_string(communicator.rank()) +
                        " cannot start: " + error.what(),
                    CommFailure::System);
  }
}

}  // namespace

void run_ranks(std::int32_t num_ranks, const std::function<void(Communicator&)>& body,
               const CommOptions& options) {
  if (num_ranks < 1) throw invalid("num_ranks", num_ranks, "1 or more");
  if (!body) throw invalid("body", "empty", "a function");
  const auto group = make_thread_group(num_ranks, options);
  std::vector<std::exception_ptr> failures(group.size());
  {
    std::vector<std::jthread> threads;
    threads.reserve(group.size());
    for (std::size_t rank = 0; rank < group.size(); ++rank) {
      start_thread(*group[rank], threads,
                   [&, rank] { run_one(*group[rank], body, failures[rank]); });
    }
  }
  std::exception_ptr first;
  for (const std::exception_ptr& failure : failures) {
    if (failure == nullptr) continue;
    if (!is_abort(failure)) std::rethrow_exception(failure);
    if (first == nullptr) first = failure;
  }
  if (first != nullptr) std::rethrow_exception(first);
}

}  // namespace magi
