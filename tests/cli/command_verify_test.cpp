// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/run_magi.hpp"
#include "cli/temporary_folder.hpp"
#include "verify/case.hpp"

namespace magi::testing {
namespace {

TEST(CommandVerify, PrintsItsSeedAndHolds) {
  const Outcome outcome = run_magi("verify --cases 20 --seed 5");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out.find("20 cases hold (seed 5"), 0u) << outcome.out;
  const Outcome one = run_magi("verify --cases 20 --seed 5 --threads 1");
  EXPECT_EQ(one.out.find("20 cases hold (seed 5"), 0u) << one.out << one.err;
  const Outcome drawn = run_magi("verify --cases 1 --json");
  EXPECT_EQ(drawn.code, 0) << drawn.err;
  const auto json = nlohmann::json::parse(drawn.out);
  EXPECT_NE(drawn.err.find("seed " + std::to_string(json["seed"].get<std::uint64_t>())),
            std::string::npos);
  EXPECT_TRUE(json["holds"].get<bool>());
}

TEST(CommandVerify, ReplaysOneCase) {
  const TemporaryFolder folder;
  RandomStream random(8);
  cli::VerifyCase c = cli::random_case(random);
  folder.write("good.json", cli::case_to_json(c));
  EXPECT_EQ(run_magi("verify --replay " + folder.path("good.json")).code, 0);
  const auto answer = [&](const std::string& file) {
    return nlohmann::json::parse(run_magi("verify --json --replay " + folder.path(file)).out);
  };
  EXPECT_EQ(answer("good.json"), nlohmann::json::parse(R"({"holds": true, "findings": []})"));
  // More ranks than rows: valid as a file, refused by the planner.
  c.config.num_ranks = 4000;
  c.config.placement = {.uneven_shard = true};
  folder.write("bad.json", cli::case_to_json(c));
  const Outcome outcome = run_magi("verify --replay " + folder.path("bad.json"));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("num_ranks"), std::string::npos) << outcome.err;
  EXPECT_EQ(answer("bad.json").at("holds"), false);
  EXPECT_EQ(answer("bad.json").at("findings").size(), 1u);
  for (const char* flag : {"--cases 3", "--first 1", "--threads 1", "--seed 8"}) {
    const Outcome refused = run_magi("verify --replay " + folder.path("good.json") + " " + flag);
    EXPECT_EQ(refused.code, 2) << flag;
    EXPECT_NE(refused.err.find("given with --replay"), std::string::npos) << refused.err;
  }
}

TEST(CommandVerify, AThreadThatCannotStartEndsTheRun) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need more addresses than the limit";
#endif
  // Addresses for the stacks of a few threads, and more cases than there is time for.
  const Outcome outcome =
      run_magi("verify --cases 100000000 --threads 64", "ulimit -s 1048576; ulimit -v 4194304;");
  EXPECT_EQ(outcome.code, 3);
  EXPECT_NE(outcome.err.find("of 64 cannot start: "), std::string::npos) << outcome.err;
}

TEST(CommandVerify, BadCalls) {
  for (const char* arguments : {"verify --cases 0", "verify --cases many", "verify --seed -1",
                                "verify --seed x", "verify --replay /no/such/file",
                                "verify --first -1", "verify --threads 0", "verify more"}) {
    const Outcome outcome = run_magi(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments << ": " << outcome.err;
    EXPECT_EQ(outcome.out, "");
  }
  EXPECT_EQ(run_magi("verify --replay -", "", "{\"mask\": ").code, 2);
}

}  // namespace
}  // namespace magi::testing
