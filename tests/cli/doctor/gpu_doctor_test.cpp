// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "doctor/attention_rates.hpp"
#include "doctor/calibrate.hpp"
#include "doctor/gpus.hpp"
#include "doctor/row_rates.hpp"
#include "doctor/small_attention.hpp"
#include "magi/runtime.hpp"
#include "support/gpu/gpu_test.hpp"

namespace magi::cli {
namespace {

using GpuDoctor = test::GpuTest;

void expect_rate(double rate) {
  EXPECT_TRUE(std::isfinite(rate)) << rate;
  EXPECT_GT(rate, 0.0);
}

TEST_F(GpuDoctor, ListsEveryGpuAndWhoServesIt) {
  const GpuMachine machine = find_gpus();
  ASSERT_EQ(machine.gpus.size(), static_cast<std::size_t>(device_count()));
  EXPECT_EQ(machine.has_peer_access.size(), machine.gpus.size() * machine.gpus.size());
  EXPECT_EQ(machine.gpus[0].backend, "sm90");
  EXPECT_EQ(machine.gpus[0].name, device_name(0));
  EXPECT_EQ(machine.driver.substr(0, 5), "CUDA ");
  EXPECT_EQ(machine.refusal, "");
  EXPECT_GT(machine.gpus[0].num_sms, 0);
  EXPECT_GT(machine.gpus[0].block_shared_bytes, 48 << 10);
  EXPECT_LE(machine.gpus[0].free_bytes, machine.gpus[0].memory_bytes);
}

TEST_F(GpuDoctor, ASmallAttentionIsRightAndPlantedErrorsAreFound) {
  on_gpu(0, [](const RankPlace& place) {
    for (const std::string& finding : check_small_attention(place)) ADD_FAILURE() << finding;
    RankPlace wrong = place;
    int num_copies = 0;
    constexpr int kInputs = 4;
    wrong.copy_sync = [&](void* to, const void* from, std::int64_t size_bytes) {
      place.copy_sync(to, from, size_bytes);
      if (num_copies++ >= kInputs) *static_cast<std::uint32_t*>(to) ^= 0x40004000U;  // exponents
    };
    EXPECT_EQ(check_small_attention(wrong).size(), 5U);
  });
}

TEST_F(GpuDoctor, TwoRanksAreRightOnOneGpuAndOnTwo) {
  const auto on_one = check_over_two_ranks("sm90", [](const RankBody& body) {
    run_ranks(2, [&](Communicator& group) {
      on_gpu(0, [&](const RankPlace& place) { body(group, place); });
    });
  });
  for (const std::string& finding : on_one) ADD_FAILURE() << finding;
  if (device_count() < 2) GTEST_SKIP() << "one GPU alone: the part over two was not run";
  const auto on_two = check_over_two_ranks(
      "sm90", [](const RankBody& body) { EXPECT_NE(run_gpu_ranks(2, body), ""); });
  for (const std::string& finding : on_two) ADD_FAILURE() << finding;
}

TEST_F(GpuDoctor, MeasuresAttentionAndMemory) {
  on_gpu(0, [](const RankPlace& place) {
    const AttentionRates rates = attention_rates(place);
    expect_rate(rates.flops_per_second);
    expect_rate(rates.backward_flops_per_second);
    expect_rate(rates.seconds_per_launch);
    expect_rate(memory_rate(place, 16384));
  });
}

/// Ranks as threads may share a GPU, so this needs one alone.
TEST_F(GpuDoctor, MeasuresExchangesOverNvlink) {
  run_ranks(2, [](Communicator& base) {
    on_gpu(0, [&](const RankPlace& place) {
      const std::shared_ptr<Communicator> borrowed(std::shared_ptr<void>(), &base);
      const auto group = make_nvlink_group(borrowed, 0);
      const ExchangeRates rates = exchange_rates(*group, place, 256);
      expect_rate(rates.bytes_per_second);
      expect_rate(rates.seconds_per_transfer);
      group->close_sync();
    });
  });
}

TEST_F(GpuDoctor, CalibratesAllGpusAtOnce) {
  const GpuMachine machine = find_gpus();
  if (machine.gpus.size() < 2) GTEST_SKIP() << "one GPU alone: device test not run";
  const CostFile file = calibrate(machine, [](const std::string&) {});
  validate(file.cost);
  EXPECT_NE(file.machine.find(machine.gpus[0].name), std::string::npos) << file.machine;
  EXPECT_EQ(cost_file_from_json(cost_file_to_json(file)), file);
}

}  // namespace
}  // namespace magi::cli
