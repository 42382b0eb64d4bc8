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

/// Checks over ranks on GPU 0, at the place that `change` makes of it.
std::vector<std::string> check_on_one(std::int32_t num_ranks,
                                      const std::function<RankPlace(const RankPlace&)>& change) {
  return check_small_attention(num_ranks, "sm90", [&](const RankBody& body) {
    run_ranks(num_ranks, [&](Communicator& group) {
      on_gpu(0, [&](const RankPlace& place) { body(group, change(place)); });
    });
  });
}

TEST_F(GpuDoctor, ASmallAttentionIsRightAndPlantedErrorsAreFound) {
  const auto same = [](const RankPlace& place) { return place; };
  for (const std::int32_t num_ranks : {1, 2}) {
    for (const std::string& finding : check_on_one(num_ranks, same)) ADD_FAILURE() << finding;
  }
  const auto poison = [](const RankPlace& place) {
    RankPlace wrong = place;
    constexpr int kInputs = 4;
    wrong.copy_sync = [copy = place.copy_sync, num_copies = std::make_shared<int>(0)](
                          void* to, const void* from, std::int64_t size_bytes) {
      copy(to, from, size_bytes);
      if ((*num_copies)++ >= kInputs) *static_cast<std::uint32_t*>(to) ^= 0x40004000U;  // exponents
    };
    return wrong;
  };
  EXPECT_EQ(check_on_one(1, poison).size(), 5U);
  if (device_count() < 2) GTEST_SKIP() << "one GPU alone: the part over two was not run";
  const auto on_two = check_small_attention(
      2, "sm90", [](const RankBody& body) { EXPECT_NE(run_gpu_ranks(2, body), ""); });
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
