// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <exception>
#include <thread>

#include "base/check.hpp"
#include "kernels/cpu/attention.hpp"
#include "magi/runtime.hpp"
#include "runtime/abort_group.hpp"

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

}  // namespace

void run_ranks(std::int32_t num_ranks, const std::function<void(Communicator&)>& body,
               const CommOptions& options) {
  if (num_ranks < 1) throw invalid("num_ranks", num_ranks, "1 or more");
  const auto group = make_thread_group(num_ranks, options);
  std::vector<std::exception_ptr> failures(group.size());
  {
    std::vector<std::jthread> threads;
    threads.reserve(group.size());
    for (std::size_t rank = 0; rank < group.size(); ++rank) {
      threads.emplace_back([&, rank] { run_one(*group[rank], body, failures[rank]); });
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
