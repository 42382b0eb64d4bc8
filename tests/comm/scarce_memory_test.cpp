// SPDX-License-Identifier: Apache-2.0
// A rank that is out of memory tells the others that it fails: what must not throw does without.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <string>

#include "comm/net/failure_channel.hpp"
#include "comm/ranks.hpp"

namespace {

thread_local bool is_out_of_memory = false;

void* take_or_throw(std::size_t size) {
  void* const data = is_out_of_memory ? nullptr : std::malloc(size > 0 ? size : 1);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

}  // namespace

void* operator new(std::size_t size) { return take_or_throw(size); }
void* operator new[](std::size_t size) { return take_or_throw(size); }
void operator delete(void* data) noexcept { std::free(data); }
void operator delete[](void* data) noexcept { std::free(data); }
void operator delete(void* data, std::size_t) noexcept { std::free(data); }
void operator delete[](void* data, std::size_t) noexcept { std::free(data); }

namespace magi::testing {
namespace {

const std::string kReason = "a reason that is longer than what a text holds without memory";

template <typename Call>
void without_memory(const Call& call) {
  is_out_of_memory = true;
  call();
  is_out_of_memory = false;
}

class ScarceMemory : public ::testing::TestWithParam<Backend> {};

TEST_P(ScarceMemory, AnAbortIsTold) {
  run_ranks(GetParam(), {.num_ranks = 2}, [](Communicator& group) {
    group.allgather_sync({});  // all ranks have their group
    if (group.rank() == 0) without_memory([&] { group.abort(kReason); });
    const CommError error = catch_comm_error([&] { group.allgather_sync({}); });
    EXPECT_EQ(error.failure(), CommFailure::Aborted) << error.what();
  });
}

INSTANTIATE_TEST_SUITE_P(All, ScarceMemory,
                         ::testing::Values(Backend::Threads, Backend::Bytes, Backend::Nccl),
                         [](const auto& test) { return backend_name(test.param); });

TEST(ScarceMemoryAlarm, AFailureIsTold) {
  comm::FailureChannel host(0, 2), other(1, 2);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  ASSERT_TRUE(other.connect(host.open(comm::TcpReach::ThisMachine), true, end));
  host.accept({true, true}, end);
  const CommError error(kReason, CommFailure::Aborted);
  without_memory([&] { other.report(error); });
  const auto told = host.listen(std::chrono::seconds(5));
  ASSERT_TRUE(told);
  EXPECT_EQ(told->what(), kReason);
}

}  // namespace
}  // namespace magi::testing
