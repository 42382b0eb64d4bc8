// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/run_magi.hpp"
#include "cli/temporary_folder.hpp"
#include "draw/xml.hpp"
#include "magi/cost.hpp"
#include "ranks/rank_processes.hpp"

namespace magi::testing {
namespace {

std::string some_text() {
  std::string text;
  for (int i = 0; i < 200; ++i) text += "Line " + std::to_string(i * i) + " of a plain text.\n";
  return text;
}

TEST(CommandDemo, EveryCheckHoldsAndPicturesAreWritten) {
  const TemporaryFolder folder;
  const std::string text = folder.write("text", some_text());
  const Outcome outcome = run_magi("demo --cpu " + text + " --tokens 1500 --ranks 3 --json --out " +
                                   folder.path("pictures"));
  ASSERT_EQ(outcome.code, 0) << outcome.err << outcome.out;
  const auto report = nlohmann::json::parse(outcome.out);
  EXPECT_TRUE(report["holds"].get<bool>());
  EXPECT_EQ(report["tokens"], 1500);
  EXPECT_EQ(report["sources"], nlohmann::json({"text"}));
  EXPECT_EQ(report["dtype"], "float32");
  EXPECT_EQ(report["device"], "CPU");
  EXPECT_EQ(report["transport"], "shm");
  ASSERT_EQ(report["masks"].size(), 4u);
  for (const auto& mask : report["masks"]) {
    SCOPED_TRACE(mask.dump());
    EXPECT_TRUE(mask["bytes_as_planned"].get<bool>());
    EXPECT_EQ(mask["forward_bytes"], mask["planned_bytes"]);
    EXPECT_EQ(mask["error"].size(), 5u);
    for (const auto& [name, tensor] : mask["error"].items()) {
      EXPECT_GT(tensor["error"].get<double>(), 0.0) << name << ": float32 cannot be exact";
      EXPECT_LE(tensor["error"].get<double>(), tensor["allowed"].get<double>());
    }
    ASSERT_EQ(mask["pictures"].size(), 4u);
    for (const auto& picture : mask["pictures"]) {
      const auto name = picture.get<std::string>().substr(folder.path().size());
      EXPECT_EQ(xml_fault(folder.read(name)), "") << name;
    }
  }
}

/// Float32 sums of bfloat16 inputs are far inside of what a plain 16-bit computation may be off.
TEST(CommandDemo, BFloat16IsJudgedByTheRuleOf16Bits) {
  const TemporaryFolder folder;
  const std::string text = folder.write("text", some_text());
  const Outcome outcome = run_magi("demo --cpu --bfloat16 " + text +
                                   " --tokens 600 --ranks 2 --json --out " + folder.path("out"));
  ASSERT_EQ(outcome.code, 0) << outcome.err << outcome.out;
  const auto report = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(report["dtype"], "bfloat16");
  for (const auto& mask : report["masks"]) {
    SCOPED_TRACE(mask.dump());
    EXPECT_TRUE(mask["bytes_as_planned"].get<bool>());
    EXPECT_EQ(mask["backward_bytes"], 3 * mask["forward_bytes"].get<std::int64_t>());
    for (const char* name : {"out", "dQ", "dK", "dV"}) {
      const auto& error = mask["error"][name];
      EXPECT_LT(error["error"].get<double>(), 0.01 * error["allowed"].get<double>()) << name;
    }
  }
}

TEST(CommandDemo, RunsOnTheGpusOfTheMachine) {
  const std::int32_t num_gpus = cli::count_gpus();
  if (num_gpus < 2) GTEST_SKIP() << "two GPUs are not here: device test not run";
  const TemporaryFolder folder;
  const std::string text = folder.write("text", some_text());
  const std::string call = "demo " + text + " --tokens 1500 --json --out " + folder.path("out");
  const Outcome outcome = run_magi(call);
  ASSERT_EQ(outcome.code, 0) << outcome.err << outcome.out;
  const auto report = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(report["dtype"], "bfloat16");
  EXPECT_NE(report["device"], "CPU");
  EXPECT_TRUE(report["transport"] == "nvlink" || report["transport"] == "nccl") << report;
  EXPECT_EQ(report["launch"].get<std::string>().find(std::to_string(std::min(num_gpus, 8))), 0u);
  for (const auto& mask : report["masks"]) {
    EXPECT_TRUE(mask["bytes_as_planned"].get<bool>());
    EXPECT_EQ(mask["forward_bytes"], mask["planned_bytes"]);
  }
  EXPECT_EQ(nlohmann::json::parse(run_magi(call + " --cpu").out)["device"], "CPU");
}

TEST(CommandDemo, OneRankAndAReportForPeople) {
  const TemporaryFolder folder;
  const std::string text = folder.write("text", some_text());
  const Outcome outcome =
      run_magi("demo " + text + " --tokens 200 --ranks 1 --out " + folder.path("pictures"));
  ASSERT_EQ(outcome.code, 0) << outcome.err << outcome.out;
  EXPECT_NE(outcome.out.find("All checks hold."), std::string::npos);
  EXPECT_NE(outcome.out.find("every pair of ranks as planned"), std::string::npos);
}

/// A launch's port, which names it among those of the machine; nothing listens there.
std::string own_port(const TemporaryFolder& folder) {
  constexpr std::size_t kFirst = 1024, kCount = 64000;
  return std::to_string(kFirst + std::hash<std::string>{}(folder.path()) % kCount);
}

/// What two ranks of one launch left.
struct PairOutcome {
  Outcome first;   ///< rank 0
  Outcome second;  ///< rank 1
};

/// Runs `magi demo` as two ranks of a launch, each with its own arguments.
PairOutcome run_pair(const TemporaryFolder& folder, const std::string& first,
                     const std::string& second, const std::string& variables_of_second = "") {
  const std::string launch = "WORLD_SIZE=2 MASTER_PORT=" + own_port(folder);
  PairOutcome outcome;
  std::thread peer([&] {
    outcome.second = run_magi("demo " + second, launch + " RANK=1 " + variables_of_second);
  });
  outcome.first = run_magi("demo " + first, launch + " RANK=0");
  peer.join();
  return outcome;
}

/// Both ranks end with a sentence that has these words.
void expect_refusals(const PairOutcome& outcome, const std::vector<std::string>& words) {
  for (const Outcome& rank : {outcome.first, outcome.second}) {
    EXPECT_EQ(rank.code, 3) << rank.err;
    for (const std::string& word : words) EXPECT_TRUE(has(rank.err, word)) << rank.err;
    EXPECT_EQ(rank.out, "");
  }
}

TEST(CommandDemo, RanksOfALauncherMeet) {
  const TemporaryFolder folder;
  const std::string text = folder.write("text", some_text());
  const std::string call = "--cpu " + text + " --tokens 300 --out " + folder.path("pictures");
  const PairOutcome outcome = run_pair(folder, call, call);
  EXPECT_EQ(outcome.first.code, 0) << outcome.first.err;
  EXPECT_EQ(outcome.second.code, 0) << outcome.second.err;
  EXPECT_EQ(outcome.second.out, "");
  EXPECT_NE(outcome.first.out.find("2 rank processes of a launcher"), std::string::npos);
  EXPECT_NE(outcome.first.out.find("All checks hold."), std::string::npos);
}

TEST(CommandDemo, RanksWithDifferentPlansAreNamed) {
  const TemporaryFolder folder;
  const std::string text = folder.write("text", some_text());
  const std::string out = " --deadline 20 --out " + folder.path("pictures");
  expect_refusals(run_pair(folder, text + " --tokens 300" + out, text + " --tokens 301" + out),
                  {"rank 1", "plan"});
}

TEST(CommandDemo, RanksWithDifferentCostFilesAreNamed) {
  const TemporaryFolder folder;
  const std::string text = folder.write("text", some_text());
  const std::string costs = folder.write(
      "costs", cost_file_to_json({.machine = "another", .cost = {.bytes_per_second = 1e9}}));
  const std::string call = text + " --tokens 300 --deadline 20 --out " + folder.path("pictures");
  expect_refusals(run_pair(folder, call, call, "MAGI_ATTENTION_COST_FILE=" + costs),
                  {"rank 0", "rank 1", "plan"});
}

TEST(CommandDemo, ARankThatNeverComesIsReported) {
  const TemporaryFolder folder;
  const std::string text = folder.write("text", some_text());
  const Outcome outcome =
      run_magi("demo " + text + " --deadline 1 --out " + folder.path("pictures"),
               "RANK=0 WORLD_SIZE=2 MASTER_PORT=" + own_port(folder));
  EXPECT_EQ(outcome.code, 3) << outcome.err;
  EXPECT_NE(outcome.err.find("rank 1"), std::string::npos) << outcome.err;
}

TEST(CommandDemo, BadCalls) {
  const TemporaryFolder folder;
  const std::string empty = folder.write("empty", "");
  const std::string out = " --out " + folder.path("pictures");
  const std::vector<std::string> calls = {"demo " + empty + out,
                                          "demo /no/such/file" + out,
                                          "demo --ranks 0",
                                          "demo --ranks 65",
                                          "demo --tokens 63",
                                          "demo --tokens x",
                                          "demo --docs /no/such/folder" + out,
                                          "demo --out /dev/null/x"};
  for (const std::string& arguments : calls) {
    const Outcome outcome = run_magi(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments << ": " << outcome.err;
    EXPECT_EQ(outcome.out, "");
  }
  EXPECT_EQ(run_magi("demo", "RANK=2 WORLD_SIZE=2").code, 2);
  EXPECT_EQ(run_magi("demo", "RANK=x WORLD_SIZE=2").code, 2);
  const Outcome other = run_magi("demo --ranks 3", "RANK=0 WORLD_SIZE=2 MASTER_PORT=29500");
  EXPECT_EQ(other.code, 2);
  EXPECT_NE(other.err.find("--ranks is 3; allowed: 2"), std::string::npos) << other.err;
  EXPECT_EQ(folder.names(), std::vector<std::string>{"empty"});
}

}  // namespace
}  // namespace magi::testing
