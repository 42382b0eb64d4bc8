// SPDX-License-Identifier: Apache-2.0
#include "bench/distributed/dist_bench.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "bench/distributed/check.hpp"
#include "cli/run_magi.hpp"
#include "cli/temporary_folder.hpp"
#include "draw/xml.hpp"

namespace magi::cli {
namespace {

using testing::Outcome;
using testing::run_magi;
using testing::TemporaryFolder;
using testing::xml_fault;

constexpr const char* kSmall = "bench dist --cpu --heads 4:2 --dim 32 --rounds 2 ";

std::vector<std::string> names_of(const nlohmann::json& object) {
  std::vector<std::string> names;
  for (const auto& [name, value] : object.items()) names.push_back(name);
  return names;
}

/// Every side has computed the kernel's numbers, or the command would have failed.
void expect_cell(const nlohmann::json& cell, const std::vector<std::string>& sides) {
  SCOPED_TRACE(cell.dump());
  EXPECT_EQ(cell["transport"], "shm");
  EXPECT_GT(cell["area"], 0);
  EXPECT_EQ(names_of(cell["sides"]), sides);
  for (const auto& [name, side] : cell["sides"].items()) {
    SCOPED_TRACE(name);
    EXPECT_LE(side["error"].get<double>(), 1e-4);
    EXPECT_TRUE(side["extra_bytes"].is_null());
    for (const char* pass : {"forward", "backward"}) {
      const auto& figures = side[pass];
      EXPECT_GT(figures["ms"].get<double>(), 0.0);
      EXPECT_LE(figures["low_ms"], figures["ms"]);
      EXPECT_LE(figures["ms"], figures["high_ms"]);
      EXPECT_GT(figures["tflops"].get<double>(), 0.0);
      EXPECT_GT(figures["share"].get<double>(), 0.0);
      EXPECT_EQ(figures.contains("exposed_ms"), name != "alone");
    }
  }
}

TEST(DistBench, EverySideComputesTheSameOnTwoRanks) {
  const Outcome outcome = run_magi(std::string(kSmall) + "--tokens 256 --json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["dtype"], "float32");
  EXPECT_EQ(json["heads_q"], 4);
  EXPECT_EQ(json["head_dim"], 32);
  ASSERT_EQ(json["cells"].size(), 7u);
  for (const auto& cell : json["cells"]) {
    EXPECT_EQ(cell["tokens"], 256);
    EXPECT_EQ(cell["ranks"], 2);
    EXPECT_EQ(cell["rounds"], 2);
    expect_cell(cell, {"allgather", "alone", "default", "ring", "ulysses"});
  }
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 14) << outcome.err;
}

// 3 ranks do not divide the heads for Ulysses; 4 ranks have rings of pairs. The sizes leave padding
// and short chunks.
TEST(DistBench, SidesFollowTheNumberOfRanks) {
  const Outcome outcome =
      run_magi(std::string(kSmall) + "--gpus 1,3,4 --tokens 74 --masks prefix_tree,window --json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto cells = nlohmann::json::parse(outcome.out)["cells"];
  ASSERT_EQ(cells.size(), 6u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(names_of(cells[i]["sides"]), (std::vector<std::string>{"alone", "default"}));
    expect_cell(cells[2 + i], {"allgather", "alone", "default", "ring"});
    expect_cell(cells[4 + i], {"allgather", "alone", "default", "ring", "usp"});
  }
}

// A rank of the ring passes on k and v of 64 rows, 2 heads of 32 float32 each, then sums of as
// many.
TEST(DistBench, BytesAreThoseThatLeaveARank) {
  const Outcome outcome =
      run_magi(std::string(kSmall) + "--gpus 2 --tokens 64 --masks full --json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto sides = nlohmann::json::parse(outcome.out)["cells"][0]["sides"];
  constexpr std::int64_t kKeys = 64 * 2 * 2 * 32 * 4;
  constexpr std::int64_t kQueries = 64 * 4 * 32 * 4;
  EXPECT_EQ(sides["alone"]["forward_bytes"], 0);
  EXPECT_EQ(sides["default"]["forward_bytes"], kKeys);
  EXPECT_EQ(sides["default"]["backward_bytes"], 2 * kKeys);
  EXPECT_EQ(sides["ring"]["forward_bytes"], kKeys);
  EXPECT_EQ(sides["ring"]["backward_bytes"], 3 * kKeys);
  EXPECT_EQ(sides["allgather"]["forward_bytes"], kKeys);
  EXPECT_EQ(sides["allgather"]["backward_bytes"], 2 * kKeys);
  EXPECT_EQ(sides["ulysses"]["forward_bytes"], (2 * kQueries + kKeys) / 2);
  EXPECT_EQ(sides["ulysses"]["backward_bytes"], (2 * kQueries + kKeys) / 2);
}

TEST(DistBench, OnePassWithoutBaselinesAndPictures) {
  const TemporaryFolder folder;
  const Outcome outcome = run_magi(std::string(kSmall) +
                                   "--tokens 64 --masks causal,full --backward --no-baselines "
                                   "--plots " +
                                   folder.path("plots"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("causal  default  backward      2      64"), std::string::npos)
      << outcome.out;
  EXPECT_EQ(outcome.out.find("forward"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find("ring"), std::string::npos) << outcome.out;
  EXPECT_EQ(xml_fault(folder.read("plots/dist2-64-backward.svg")), "");
  EXPECT_EQ(folder.read("plots/dist2-64-forward.svg"), "");
}

TEST(DistBench, RanksOfALauncherMeet) {
  const TemporaryFolder folder;
  const std::string port = std::to_string(1024 + std::hash<std::string>{}(folder.path()) % 64000);
  const std::string call = std::string(kSmall) + "--tokens 64 --masks causal --json";
  const std::string launch = "WORLD_SIZE=2 MASTER_PORT=" + port;
  Outcome second;
  std::thread peer([&] { second = run_magi(call, launch + " RANK=1"); });
  const Outcome first = run_magi(call, launch + " RANK=0");
  peer.join();
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(second.out + second.err, "");
  EXPECT_EQ(nlohmann::json::parse(first.out)["cells"][0]["ranks"], 2);
  EXPECT_EQ(run_magi(call + " --gpus 3", launch + " RANK=0").code, 2);
}

TEST(DistBench, BadCalls) {
  const std::vector<std::pair<std::string, std::string>> calls = {
      {"--tokens 3", "--tokens is '3'; allowed: even numbers"},
      {"--tokens k", "--tokens is 'k'"},
      {"--tokens 2048k", "--tokens is '2048k'"},
      {"--masks full,round", "--masks is 'round'; allowed: full, "},
      {"--gpus 0", "--gpus[0] is '0'"},
      {"--heads 8:3", "--heads is '8:3'"},
      {"--dim 12", "--head-dim is 12"},
      {"--transport pigeon", "--transport is 'pigeon'; allowed: nvlink, nccl, shm"},
      {"--transport nccl --cpu", "--transport is nccl; allowed: shm with --cpu"},
      {"--transport shm", "--transport is shm; allowed: nvlink or nccl"},
      {"--cpu --nccl libnccl.so.2", "--nccl is given with --cpu"},
      {"--cpu --gpus 3 --tokens 1k --masks varlen_full", "--tokens is 1024 on 3 ranks"},
      {"--rounds 0", "--rounds"},
      {"--plots /dev/null/x", "--plots"}};
  for (const auto& [flags, part] : calls) {
    const Outcome outcome = run_magi("bench dist " + flags);
    EXPECT_EQ(outcome.code, 2) << flags << ": " << outcome.err;
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_EQ(outcome.out, "");
  }
}

TEST(DistBench, MoreGpusThanThereAreAreNoUsageError) {
  const Outcome outcome = run_magi("bench dist --gpus 64 --tokens 1k --masks full");
  EXPECT_EQ(outcome.code, 3) << outcome.err;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
}

class Distance : public ::testing::Test {
 protected:
  static constexpr std::int32_t kTotal = 40;
  Distance() : device_(make_host_device()) {
    alone_.rows = {{0, kTotal}};
    alone_.arrays = make_results(*device_, {1, 1, 8}, {kTotal, kTotal});
    side_.rows = {{4, 8}, {20, 30}};
    side_.arrays = make_results(*device_, {1, 1, 8}, {count_rows(side_.rows) + 2, 16});
    for (const auto tensor : kTensors) {
      auto* whole = values(alone_, tensor);
      for (std::int32_t i = 0; i < kTotal * 8; ++i) whole[i] = static_cast<float>(i % 7) - 3.0f;
      std::copy(whole + 4 * 8, whole + 8 * 8, values(side_, tensor));
      std::copy(whole + 20 * 8, whole + 30 * 8, values(side_, tensor) + 4 * 8);
    }
  }
  static float* values(Side& side, Array AttentionArrays::*tensor) {
    return static_cast<float*>((side.arrays.*tensor).view.data);
  }

  static constexpr std::array kTensors = {&AttentionArrays::out, &AttentionArrays::dq,
                                          &AttentionArrays::dk, &AttentionArrays::dv};
  std::unique_ptr<RankDevice> device_;
  Side alone_, side_;
};

TEST_F(Distance, IsZeroForEqualRowsWhateverPaddingHolds) {
  values(side_, &AttentionArrays::out)[14 * 8] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(distance_sync(*device_, side_, alone_), 0.0);
}

TEST_F(Distance, SeesOneWrongValueOfAnyTensor) {
  for (const auto tensor : kTensors) {
    float& value = values(side_, tensor)[13 * 8 + 7];
    const float before = std::exchange(value, value + 1.0f);
    EXPECT_GT(distance_sync(*device_, side_, alone_), allowed_distance(DType::Float32));
    value = std::numeric_limits<float>::quiet_NaN();
    EXPECT_FALSE(distance_sync(*device_, side_, alone_) <= allowed_distance(DType::Float32));
    value = before;
  }
}

}  // namespace
}  // namespace magi::cli
