// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/run_magi.hpp"
#include "cli/temporary_folder.hpp"
#include "doctor/calibrate.hpp"
#include "doctor/row_rates.hpp"
#include "doctor/small_attention.hpp"
#include "magi/plan.hpp"
#include "magi/runtime.hpp"

namespace magi::cli {
namespace {

using magi::testing::Outcome;
using magi::testing::run_magi;
using magi::testing::TemporaryFolder;

constexpr double kRowBytes = 8 * 128 * 2;  // of the doctor's rows

/// Work is done, and a clock of ours tells how long it took.
RankPlace with_clock(const std::function<double()>& seconds) {
  RankPlace place = host_place();
  place.time_sync = [seconds](const std::function<void()>& work) {
    work();
    return seconds();
  };
  return place;
}

TEST(Doctor, RatesAreBytesOverSeconds) {
  constexpr std::int32_t kRows = 1024;
  // Ten copies, and ten sums of three partials, take a second each.
  const double copied = 2.0 * kRows * 2.0 * kRowBytes;
  const double summed = (3 + 2) * kRows * 2.0 * kRowBytes;
  EXPECT_DOUBLE_EQ(memory_rate(with_clock([] { return 1.0; }), kRows), (copied + summed) / 0.2);
}

TEST(Doctor, AnExchangeOfNextToNothingGivesTheDelay) {
  constexpr std::int32_t kRanks = 3, kRows = 100, kRounds = 5;
  run_ranks(kRanks, [](Communicator& group) {
    int rounds = 0;
    const RankPlace place = with_clock([&] { return rounds++ < kRounds ? 1.0 : 3.0; });
    const ExchangeRates rates = exchange_rates(group, place, kRows);
    EXPECT_EQ(rounds, 2 * kRounds);
    EXPECT_DOUBLE_EQ(rates.seconds_per_transfer, 0.1 / 2);
    EXPECT_NEAR(rates.bytes_per_second, 2 * kRows * kRowBytes / 0.2, 1.0);
  });
}

TEST(Doctor, TheLeastOfRanksIsKnownToAll) {
  run_ranks(3,
            [](Communicator& group) { EXPECT_EQ(least_of_ranks(group, 2.0 - group.rank()), 0.0); });
}

/// Checks over ranks that are threads; `place_of` may poison what a rank reads back.
std::vector<std::string> check_over(std::int32_t num_ranks, const std::string& backend,
                                    const std::function<RankPlace(Communicator&)>& place_of) {
  return check_small_attention(num_ranks, backend, [&](const RankBody& body) {
    run_ranks(num_ranks, [&](Communicator& group) { body(group, place_of(group)); });
  });
}

TEST(Doctor, ASmallAttentionIsRightAndErrorsPlantedInARankAreFound) {
  const auto poison = [](Communicator& group) {
    RankPlace place = host_place();
    if (group.rank() + 1 < group.num_ranks()) return place;
    constexpr int kInputs = 4;
    place.copy_sync = [copy = place.copy_sync, num_copies = std::make_shared<int>(0)](
                          void* to, const void* from, std::int64_t size_bytes) {
      copy(to, from, size_bytes);
      if ((*num_copies)++ >= kInputs) *static_cast<float*>(to) += 0.01f;
    };
    return place;
  };
  const auto at_host = [](Communicator&) { return host_place(); };
  for (const std::int32_t num_ranks : {1, 2}) {
    EXPECT_TRUE(check_over(num_ranks, "cpu", at_host).empty());
    EXPECT_EQ(check_over(num_ranks, "cpu", poison).size(), 5u);
    EXPECT_THROW(check_over(num_ranks, "no such", at_host), InvalidArgument);
  }
}

TEST(Doctor, CalibratesTheCpuWhereNoGpusAre) {
  std::string told;
  const CostFile file = calibrate({}, [&](const std::string& line) { told += line; });
  EXPECT_EQ(file.machine.substr(0, 10), "CPU alone:");
  EXPECT_NE(told.find("CPU"), std::string::npos);
  validate(file.cost);
  EXPECT_EQ(cost_file_from_json(cost_file_to_json(file)), file);
}

TEST(CommandDoctor, TellsOfTheMachineAndChecksAttention) {
  const Outcome text = run_magi("doctor");
  EXPECT_EQ(text.code, 0) << text.err << text.out;
  EXPECT_NE(text.out.find("attention     the CPU, cpu: right"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("two ranks on the CPU, cpu: right"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("cpu serves the CPU: head dims 1 and more; "), std::string::npos);
  EXPECT_NE(text.out.find("MAGI_ATTENTION_COST_FILE is not set"), std::string::npos);
  const Outcome outcome = run_magi("doctor --json");
  const auto report = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(report["attention"][0]["holds"], true);
  EXPECT_EQ(report["exit_code"], 0);
  EXPECT_EQ(report["backends"][0]["name"], "cpu");
  EXPECT_GT(report["memory"]["bytes"], 0);
  EXPECT_NE(report["gpus"].empty(), report["no_gpus"] == "");
  EXPECT_NE(report["machine"].get<std::string>().find(" cores, "), std::string::npos);
  EXPECT_EQ(report["peer_access"].size(), report["gpus"].size() * report["gpus"].size());
  EXPECT_NE(report["nccl"]["version"] == "", report["nccl"]["refusal"] == "");
  EXPECT_EQ(report["cost"]["bytes_per_second"], CostModel{}.bytes_per_second);
}

TEST(CommandDoctor, AnEnvironmentThatContradictsItselfIsUnfit) {
  const Outcome outcome = run_magi("doctor", "RANK=4 WORLD_SIZE=4");
  EXPECT_EQ(outcome.code, 3);
  EXPECT_NE(outcome.out.find("unfit: RANK is 4; allowed: 0 to 3, as WORLD_SIZE is 4"),
            std::string::npos)
      << outcome.out;
  EXPECT_NE(outcome.out.find("the CPU, cpu: right"), std::string::npos);
}

TEST(CommandDoctor, WritesAFileThatPlansTake) {
  const TemporaryFolder folder;
  const std::string path = folder.path("costs.json");
  const Outcome outcome = run_magi("doctor --calibrate --out " + path);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  const CostFile file = cost_file_from_json(folder.read("costs.json"));
  const std::string variable = "MAGI_ATTENTION_COST_FILE=" + path;
  const Outcome planned = run_magi("plan --tokens 4096 --causal --json", variable);
  EXPECT_EQ(plan_from_json(planned.out).config.cost, file.cost);
  const Outcome used = run_magi("doctor", variable);
  EXPECT_NE(used.out.find(path + ", of " + file.machine), std::string::npos) << used.out;
}

TEST(CommandDoctor, BadCalls) {
  EXPECT_EQ(run_magi("doctor --out x").code, 2);
  EXPECT_EQ(run_magi("doctor --calibrate --out ''").code, 2) << "no file to write";
  EXPECT_EQ(run_magi("doctor --calibrate --out /no/such/folder/x").code, 2);
  EXPECT_EQ(run_magi("doctor", "MAGI_ATTENTION_COST_FILE=/no/such/file").code, 2);
}

}  // namespace
}  // namespace magi::cli
