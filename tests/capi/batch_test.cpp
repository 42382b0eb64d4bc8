// SPDX-License-Identifier: Apache-2.0
#include "magi/batch.hpp"

#include <gtest/gtest.h>

#include "capi/owned_handles.hpp"

namespace magi::capi_test {
namespace {

std::string json_of(const magi_batch* batch) {
  const auto json = made<magi_buffer>([&](auto** b) { return magi_batch_to_json(batch, b); });
  return text_of(json.get());
}

TEST(BatchAbi, EveryFieldArrives) {
  const std::vector<std::int32_t> rows{5, 90, 7};
  const std::vector<std::int64_t> pairs{25, 5000, 49};
  magi_batch_config config;
  magi_batch_config_init(&config);
  config.num_ranks = 4;
  config.rows_per_rank = 32;
  config.devices_per_node = 2;
  config.num_micro_batches = 3;
  config.chunk_size = 8;
  for (double* value :
       {&config.flops_per_token, &config.flops_per_pair, &config.bytes_per_token,
        &config.flops_per_second, &config.bytes_per_second, &config.network_bytes_per_second}) {
    *value *= 1.0 + 0.1 * static_cast<double>(value - &config.flops_per_token);
  }
  const auto batch = made<magi_batch>(
      [&](auto** b) { return magi_batch_create(&config, rows.data(), pairs.data(), 3, b); });
  const BatchCost usual;
  const BatchConfig expected{
      .num_ranks = 4,
      .rows_per_rank = 32,
      .devices_per_node = 2,
      .num_micro_batches = 3,
      .chunk_size = 8,
      .cost = {usual.flops_per_token, usual.flops_per_pair * 1.1, usual.bytes_per_token * 1.2,
               usual.flops_per_second * 1.3, usual.bytes_per_second * 1.4,
               usual.network_bytes_per_second * 1.5}};
  const std::vector<BatchSample> samples{{5, 25}, {90, 5000}, {7, 49}};
  EXPECT_EQ(json_of(batch.get()), batch_to_json(plan_batch(samples, expected)));
  const auto defects =
      made<magi_buffer>([&](auto** b) { return magi_batch_check(batch.get(), b); });
  EXPECT_EQ(text_of(defects.get()), "");
}

TEST(BatchAbi, SamplesWithoutPairsAreCausalAndErrorsAreSentences) {
  const std::int32_t rows = 9;
  magi_batch_config config;
  magi_batch_config_init(&config);
  const auto batch =
      made<magi_batch>([&](auto** b) { return magi_batch_create(&config, &rows, nullptr, 1, b); });
  const std::vector<BatchSample> samples{causal_sample(9)};
  EXPECT_EQ(json_of(batch.get()), batch_to_json(plan_batch(samples, {})));
  magi_batch* none = nullptr;
  EXPECT_EQ(magi_batch_create(&config, nullptr, nullptr, 1, &none), MAGI_INVALID_ARGUMENT);
  config.num_ranks = 0;
  EXPECT_EQ(magi_batch_create(&config, &rows, nullptr, 1, &none), MAGI_INVALID_ARGUMENT);
  EXPECT_STREQ(magi_last_error_message(), "num_ranks is 0; allowed: 1 to 4096");
  magi_batch_report report{};
  report.struct_size = sizeof(report);
  ASSERT_EQ(magi_batch_get_report(batch.get(), &report), MAGI_OK);
  EXPECT_EQ(report.num_micro_batches, 1);
  EXPECT_EQ(report.rank_rows[0], 64);
}

}  // namespace
}  // namespace magi::capi_test
