// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "comm/litmus/handoff.hpp"
#include "cuda/device.hpp"
#include "cuda/exported_memory.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream.hpp"

// The memory order that transports between GPUs rely on (src/cuda/ptx/system.cuh), tried out:
// rows, flag, fences, load. Never one stale row in any number of rounds, and a planted fault shows
// that the count would tell.
namespace magi::test {
namespace {

constexpr int kNumPairs = 64;
std::int64_t num_handoffs = 20'000'000;

struct Outcome {
  std::int64_t handoffs = 0;
  std::int64_t stale = 0;
  bool are_late = false;
};

/// The GPUs of the writer and the reader.
struct Route {
  std::int32_t from, to;
};

Outcome hand_over(Route route, HandoffReader reader, bool is_flag_first, std::int64_t handoffs) {
  constexpr std::size_t kWordBytes = kNumPairs * kHandoffStride * sizeof(std::uint64_t);
  const std::vector<std::int32_t> both{route.from, route.to};
  const std::span<const std::int32_t> devices(both.data(), route.from == route.to ? 1 : 2);
  const auto rows = MappedMemory::create(std::size_t{kNumPairs} * kHandoffBytes, route.to, devices);
  const auto flags = MappedMemory::create(kWordBytes, route.to, devices);
  const auto credits = MappedMemory::create(kWordBytes, route.from, devices);
  Handoff handoff{.rows = reinterpret_cast<std::uint32_t*>(rows->data()),
                  .flags = reinterpret_cast<std::uint64_t*>(flags->data()),
                  .credits = reinterpret_cast<std::uint64_t*>(credits->data()),
                  .rounds = static_cast<std::uint32_t>(handoffs / kNumPairs),
                  .reader = reader,
                  .is_flag_first = is_flag_first};
  const DeviceScope here(route.to);
  const DeviceBuffer counts((kNumPairs + 1) * sizeof(std::uint64_t));
  const Stream reading;
  counts.fill(0, reading.handle());
  handoff.stale = static_cast<std::uint64_t*>(counts.data());
  handoff.are_late = reinterpret_cast<std::uint32_t*>(handoff.stale + kNumPairs);
  launch_handoff_reader(handoff, kNumPairs, reading.handle());
  {
    const DeviceScope there(route.from);
    const Stream writing;
    launch_handoff_writer(handoff, kNumPairs, writing.handle());
    writing.wait_sync();
  }
  reading.wait_sync();
  const auto seen = to_host_sync<std::uint64_t>(counts.data(), kNumPairs + 1);
  return {.handoffs = std::int64_t{handoff.rounds} * kNumPairs,
          .stale = static_cast<std::int64_t>(
              std::accumulate(seen.begin(), seen.end() - 1, std::uint64_t{0})),
          .are_late = seen.back() != 0};
}

/// On one GPU, and from the second to the first where there are two.
class Litmus : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (device_count() < GetParam()) {
      GTEST_SKIP() << GetParam() << " GPUs are not here: device test not run";
    }
  }
  Outcome run(HandoffReader reader, bool is_flag_first, std::int64_t handoffs) {
    const Outcome outcome = hand_over({GetParam() - 1, 0}, reader, is_flag_first, handoffs);
    EXPECT_FALSE(outcome.are_late) << "a wait took longer than 20 s";
    std::printf("%lld hand-offs, %lld stale\n", static_cast<long long>(outcome.handoffs),
                static_cast<long long>(outcome.stale));
    RecordProperty("handoffs", std::to_string(outcome.handoffs));
    RecordProperty("stale", std::to_string(outcome.stale));
    return outcome;
  }
};

INSTANTIATE_TEST_SUITE_P(Gpus, Litmus, ::testing::Values(1, 2),
                         ::testing::PrintToStringParamName());

TEST_P(Litmus, BulkCopiesReadWhatTheFlagStandsFor) {
  EXPECT_EQ(run(HandoffReader::Bulk, false, num_handoffs).stale, 0);
}

TEST_P(Litmus, LoadsReadWhatTheFlagStandsFor) {
  EXPECT_EQ(run(HandoffReader::Plain, false, num_handoffs / 10).stale, 0);
}

TEST_P(Litmus, AFlagBeforeTheRowsIsCaught) {
  EXPECT_GT(run(HandoffReader::Bulk, true, 100'000).stale, 0);
  EXPECT_GT(run(HandoffReader::Plain, true, 100'000).stale, 0);
}

}  // namespace
}  // namespace magi::test

int main(int argc, char** argv) {
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  ::testing::InitGoogleTest(&argc, argv);
  constexpr std::string_view kCount = "--handoffs=";
  for (int i = 1; i < argc; ++i) {
    if (!std::string_view(argv[i]).starts_with(kCount)) {
      std::fprintf(stderr, "unknown argument: %s\n", argv[i]);
      return 2;
    }
    magi::test::num_handoffs = std::atoll(argv[i] + kCount.size());
  }
  return RUN_ALL_TESTS();
}
