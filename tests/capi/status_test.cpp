// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <thread>

#include "capi/owned_handles.hpp"
#include "magi/version.hpp"

namespace magi::capi_test {
namespace {

TEST(Version, IsTheProjects) {
  EXPECT_EQ(magi_abi_version(), MAGI_ABI_VERSION);
  EXPECT_STREQ(magi_version(), MAGI_PROJECT_VERSION);
  EXPECT_STREQ(kVersion, MAGI_PROJECT_VERSION);
}

TEST(Version, TellsTheGpuArchitectures) {
  const std::string found = magi_gpu_architectures();
  EXPECT_TRUE(found.empty() || found.starts_with("sm_")) << found;
}

TEST(Status, NullArgumentsAreNamed) {
  magi_mask* mask = nullptr;
  EXPECT_EQ(magi_mask_from_slices(nullptr, 1, 4, 4, &mask), MAGI_INVALID_ARGUMENT);
  EXPECT_STREQ(magi_last_error_message(), "slices is null; allowed: a valid address");
  EXPECT_EQ(magi_mask_from_slices(nullptr, 0, 4, 4, nullptr), MAGI_INVALID_ARGUMENT);
  EXPECT_STREQ(magi_last_error_message(), "mask is null; allowed: a valid address");
  std::int64_t area = 7;
  EXPECT_EQ(magi_mask_area(nullptr, &area), MAGI_INVALID_ARGUMENT);
  EXPECT_EQ(area, 7);
  EXPECT_EQ(magi_plan_to_json(nullptr, nullptr), MAGI_INVALID_ARGUMENT);
  EXPECT_EQ(magi_exchange_wait_sync(nullptr), MAGI_INVALID_ARGUMENT);
  EXPECT_EQ(magi_attention_forward(nullptr, nullptr, nullptr, nullptr), MAGI_INVALID_ARGUMENT);
}

TEST(Status, DestroyingNothingIsFine) {
  magi_buffer_destroy(nullptr);
  magi_mask_destroy(nullptr);
  magi_placement_destroy(nullptr);
  magi_plan_destroy(nullptr);
  magi_communicator_destroy(nullptr);
  magi_exchange_destroy(nullptr);
  magi_attention_destroy(nullptr);
  EXPECT_EQ(magi_buffer_size_bytes(nullptr), 0u);
}

TEST(Status, EveryThreadHasItsOwnMessage) {
  EXPECT_EQ(magi_plan_from_json("", 0, nullptr), MAGI_INVALID_ARGUMENT);
  const std::string mine = magi_last_error_message();
  EXPECT_NE(mine, "");
  std::thread([] {
    EXPECT_STREQ(magi_last_error_message(), "");
    EXPECT_EQ(magi_mask_rows(nullptr, nullptr, nullptr), MAGI_INVALID_ARGUMENT);
  }).join();
  EXPECT_EQ(magi_last_error_message(), mine);
}

TEST(Structs, MayBeLongerWhenTheRestIsZero) {
  struct Longer {
    magi_window_mask known;
    std::int64_t unknown;
  };
  Longer longer{.known = {.struct_size = sizeof(Longer),
                          .q_end = 4,
                          .k_end = 4,
                          .left = -1,
                          .right = 0,
                          .rows_q = 4,
                          .rows_k = 4},
                .unknown = 0};
  const auto mask =
      made<magi_mask>([&](auto** m) { return magi_mask_from_window(&longer.known, m); });
  longer.unknown = 1;
  magi_mask* refused = nullptr;
  EXPECT_EQ(magi_mask_from_window(&longer.known, &refused), MAGI_INVALID_ARGUMENT);
}

TEST(Structs, ResultsAreWrittenAsFarAsTheyReach) {
  struct Longer {
    magi_placement_info known;
    std::int64_t unknown;
  };
  const std::int32_t ranks[] = {0, 1};
  const auto placement = made<magi_placement>(
      [&](auto** p) { return magi_placement_from_chunks(8, 4, 2, ranks, 2, p); });
  Longer longer{.known = {.struct_size = sizeof(Longer)}, .unknown = 42};
  EXPECT_EQ(magi_placement_get_info(placement.get(), &longer.known), MAGI_OK);
  EXPECT_EQ(longer.known.num_rows, 8);
  EXPECT_EQ(longer.unknown, 42);
  EXPECT_EQ(longer.known.struct_size, sizeof(Longer));
  longer.known.struct_size = 8;
  EXPECT_EQ(magi_placement_get_info(placement.get(), &longer.known), MAGI_INVALID_ARGUMENT);
}

TEST(LogSink, LinesAreGivenToAFunction) {
  struct Kept {
    std::string lines;
  } kept;
  const auto keep = [](void* context, std::int32_t level, const char* module, const char* text) {
    auto& lines = static_cast<Kept*>(context)->lines;
    lines += std::to_string(level) + " " + module + ": " + text + "\n";
    EXPECT_EQ(magi_set_log_sink(nullptr, nullptr, MAGI_LOG_ERROR), MAGI_OK);  // from within
  };
  ASSERT_EQ(magi_set_log_sink(keep, &kept, MAGI_LOG_INFO), MAGI_OK);
  magi_comm_options options{};
  magi_comm_options_init(&options);
  magi_communicator* ranks[2] = {};
  ASSERT_EQ(magi_thread_group_create(2, &options, ranks), MAGI_OK);
  for (magi_communicator* rank : ranks) magi_communicator_destroy(rank);
  EXPECT_EQ(kept.lines,
            "2 comm: rank 0 of 2 is in a group over threads: all ranks are threads of this "
            "process\n");
  EXPECT_EQ(magi_set_log_sink(nullptr, nullptr, MAGI_LOG_WARN), MAGI_OK);
}

TEST(LogSink, LevelsAreChecked) {
  EXPECT_EQ(magi_set_log_sink(nullptr, nullptr, 4), MAGI_INVALID_ARGUMENT);
  EXPECT_EQ(magi_set_log_sink(nullptr, nullptr, MAGI_LOG_WARN), MAGI_OK);
}

}  // namespace
}  // namespace magi::capi_test
