// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/run_magi.hpp"
#include "cli/temporary_folder.hpp"
#include "common/masks.hpp"
#include "simulate/sweep.hpp"

namespace magi::testing {
namespace {

nlohmann::json rows_of(const std::string& flags) {
  const Outcome outcome = run_magi("simulate --json " + flags);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return nlohmann::json::parse(outcome.out).at("rows");
}

TEST(CommandSimulate, SweepsRanksChunksAndDegrees) {
  const auto rows = rows_of(
      "--tokens 16384 --causal --ranks 4,8 --chunk auto,256 --degree 0,1 "
      "--strategies auto,zigzag_ring --heads-q 16 --heads-kv 4");
  // A baseline has neither chunks nor degrees.
  ASSERT_EQ(rows.size(), 2u * (2 * 2 + 1));
  EXPECT_EQ(rows[0]["strategy"], "auto");
  EXPECT_TRUE(rows[0]["chunk"].is_null());
  EXPECT_EQ(rows[0]["degree"], 0);
  EXPECT_EQ(rows[3]["chunk"], 256);
  EXPECT_EQ(rows[3]["degree"], 1);
  EXPECT_EQ(rows[4]["strategy"], "zigzag_ring");
  EXPECT_FALSE(rows[4].contains("degree"));
  EXPECT_EQ(rows[5]["ranks"], 8);
  for (const auto& row : rows) {
    EXPECT_GT(row["forward"]["seconds"], 0.0);
    EXPECT_GT(row["backward"]["node_bytes"], 0);
    EXPECT_EQ(row["backward"]["network_bytes"], 0);
    EXPECT_GT(row["memory_bytes"], 0);
  }
}

TEST(CommandSimulate, TellsMemoryAndTimeUnderEachBound) {
  const std::string flags =
      "--tokens 65536 --causal --ranks 2 --strategies auto,ring --max-exchange-bytes "
      "auto,0,134217728,1024";
  const auto rows = rows_of(flags);
  ASSERT_EQ(rows.size(), 5u);
  EXPECT_EQ(rows[0]["memory_bytes"], rows[1]["memory_bytes"]);
  EXPECT_EQ(rows[2]["max_exchange_bytes"], 134217728);
  // Rows of others take 384 MiB without a bound.
  EXPECT_LT(rows[2]["memory_bytes"], rows[1]["memory_bytes"].get<std::int64_t>() - (256 << 20));
  EXPECT_GT(rows[2]["backward"]["seconds"], 0.0);
  EXPECT_TRUE(has(rows[3]["refusal"], "max_exchange_bytes allows 1024")) << rows[3];
  EXPECT_FALSE(rows[4].contains("max_exchange_bytes"));
  const Outcome table = run_magi("simulate " + flags);
  EXPECT_TRUE(has(table.out, "none")) << table.out;
  EXPECT_TRUE(has(table.out, "128 MiB")) << table.out;
}

TEST(CommandSimulate, TellsWhatAStrategyCannotDo) {
  const Outcome outcome = run_magi("simulate --tokens 4096 --ranks 3 --strategies auto,ulysses");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(has(outcome.out, "ulysses on 3 ranks: 32:8 heads cannot be shared by 3 ranks"));
  const auto rows = rows_of("--tokens 4096 --ranks 3 --strategies ulysses");
  EXPECT_EQ(rows[0]["refusal"], "32:8 heads cannot be shared by 3 ranks");
  EXPECT_FALSE(rows[0].contains("forward"));
}

TEST(CommandSimulate, ShowsTheStrategiesOfAChoiceAndOthersOnRequest) {
  const auto names_of = [](const std::string& flags) {
    std::vector<std::string> names;
    for (const auto& row : rows_of("--tokens 512 --causal --ranks 2 " + flags)) {
      names.push_back(row["strategy"]);
    }
    return names;
  };
  const std::vector<std::string> shown = {"auto_work",  "auto",    "zigzag_ring",
                                          "all_gather", "ulysses", "usp"};
  EXPECT_EQ(names_of(""), shown);
  EXPECT_EQ(names_of("--ulysses 2"), shown);
  const std::vector<std::string> all = names_of("--strategies all");
  EXPECT_GT(all.size(), 2 * shown.size());
  for (const std::string& name : shown) EXPECT_TRUE(std::ranges::count(all, name) == 1) << name;
}

TEST(CommandSimulate, QueriesMoveWhereAPlanMayMoveThem) {
  const auto rows = rows_of(
      "--tokens 8192 --causal --ranks 4,65 --strategies queries,auto_work --heads-q 8 "
      "--heads-kv 8 --chunk 64");
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0]["strategy"], "queries");
  EXPECT_GT(rows[0]["forward"]["node_bytes"], 0);
  EXPECT_EQ(rows[2]["refusal"], "it is planned for at most 64 ranks, not 65");
  EXPECT_GT(rows[3]["forward"]["node_bytes"], 0);
  const auto shared = rows_of("--tokens 4096 --ranks 4,3 --strategies heads,mixed");
  ASSERT_EQ(shared.size(), 4u);
  EXPECT_EQ(shared[0]["strategy"], "heads");
  EXPECT_EQ(shared[1]["strategy"], "mixed");
  EXPECT_GT(shared[1]["forward"]["node_bytes"], 0);
  EXPECT_EQ(shared[2]["refusal"], "8 kv heads and 3 ranks have no common divisor above 1");
}

TEST(CommandSimulate, PlansAreSearchedAsAsked) {
  const std::string flags =
      "--documents 4000,1100,3092 --causal --ranks 4 --chunk 64 --heads-q 8 --heads-kv 8 "
      "--strategies queries,auto,ring --degree 2 ";
  const auto rows = rows_of(flags);
  const auto by_rows = rows_of(flags + "--stages rows");
  EXPECT_NE(by_rows[0]["forward"]["seconds"], rows[0]["forward"]["seconds"]);
  const std::string short_chunk = "--tokens 1000 --causal --ranks 4 --chunk 64 --strategies auto ";
  EXPECT_NE(rows_of(short_chunk + "--uneven")[0], rows_of(short_chunk)[0]);
  const std::string few =
      "--documents 4000,100,100,1000 --causal --ranks 4 --chunk 100 "
      "--strategies auto ";
  EXPECT_NE(rows_of(few + "--tolerance 0.5")[0], rows_of(few)[0]);
}

TEST(CommandSimulate, MasksGrowWithTheRanks) {
  const auto rows =
      rows_of("--growing varlen_causal --rows-per-rank 1024 --ranks 4,8 --strategies all_gather");
  EXPECT_EQ(rows[0]["rows"], 4096);
  EXPECT_EQ(rows[1]["rows"], 8192);
  const std::int32_t longest = cli::bench_lengths().back();
  for (const std::string& name : {std::string("varlen_causal"), std::string("varlen_full")}) {
    const Mask mask = cli::growing_mask(name, std::int64_t{longest} * 2);
    const Mask once = cli::dist_mask(name, longest);
    EXPECT_EQ(mask.slices.size(), 2 * once.slices.size());
    EXPECT_EQ(area(mask), 2 * area(once));
    EXPECT_NO_THROW(validate(mask));
  }
}

TEST(CommandSimulate, TakesAClusterAndDrawsCurves) {
  const TemporaryFolder folder;
  simulate::Cluster cluster{.machine = "pairs", .devices_per_node = 2};
  const std::string file = folder.write("cluster.json", simulate::cluster_to_json(cluster));
  const Outcome outcome =
      run_magi("simulate --tokens 8192 --ranks 2,4,8 --strategies auto,ring --cluster " + file +
               " --title Pairs --curves " + folder.path("curves"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(has(outcome.out, "pairs, 2 devices in a node"));
  for (const char* name : {"time.svg", "network.svg", "node.svg"}) {
    const std::string picture = folder.read(std::string("curves/") + name);
    EXPECT_TRUE(has(picture, "<title>Pairs")) << name;
    EXPECT_TRUE(has(picture, "ring")) << name;
    EXPECT_FALSE(has(picture, "zigzag")) << name;
  }
}

TEST(CommandSimulate, DrawsACurveForEachChunkSizeAndDegree) {
  const TemporaryFolder folder;
  const Outcome outcome = run_magi(
      "simulate --tokens 8192 --causal --ranks 2,4 --strategies auto,ring --chunk auto,128 "
      "--degree 0,2 --curves " +
      folder.path("curves"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::string picture = folder.read("curves/time.svg");
  for (const char* name : {"magi, keys alone, chunk auto, degree 0", "alone, chunk 128, degree 0",
                           "alone, chunk auto, degree 2", "alone, chunk 128, degree 2", ">ring<"}) {
    EXPECT_TRUE(has(picture, name)) << name;
  }
  EXPECT_FALSE(has(picture, "ring, "));
}

TEST(CommandSimulate, CurvesThatLieOnEachOtherAreToldApart) {
  const TemporaryFolder folder;
  const Outcome outcome = run_magi(
      "simulate --tokens 8192 --causal --ranks 2,4 --strategies "
      "auto,sequential_select,auto_work,ring "
      "--curves " +
      folder.path("curves"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::string picture = folder.read("curves/time.svg");
  for (const char* name :
       {">magi, keys alone<", ">magi (dashed)<", ">magi, placement sequential select"}) {
    EXPECT_TRUE(has(picture, name)) << name;
  }
}

TEST(CommandSimulate, TakesTheConstantsOfAMachine) {
  const TemporaryFolder folder;
  const CostFile file{.machine = "slow desk", .cost = {.flops_per_second = 1e12}};
  const std::string flags = "simulate --tokens 8192 --ranks 2 --strategies auto --cost " +
                            folder.write("costs.json", cost_file_to_json(file));
  const Outcome outcome = run_magi(flags + " --json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json.at("machine"), "slow desk");
  // 32 query heads, half of the pairs on each rank.
  EXPECT_GT(json.at("rows")[0]["forward"]["seconds"], 8192.0 * 8192 / 2 * 4 * 32 * 128 / 1e12);
}

TEST(CommandSimulate, RefusesAFileThatIsNoCluster) {
  const TemporaryFolder folder;
  const Outcome bad = run_magi("simulate --tokens 64 --cluster " + folder.write("bad.json", "{}"));
  EXPECT_EQ(bad.code, 2);
  EXPECT_TRUE(has(bad.err, "cluster")) << bad.err;
}

}  // namespace
}  // namespace magi::testing
