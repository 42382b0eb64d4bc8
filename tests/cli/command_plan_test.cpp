// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/run_magi.hpp"
#include "cli/temporary_folder.hpp"
#include "magi/mask_builders.hpp"
#include "magi/plan.hpp"

namespace magi::testing {
namespace {

struct BadCall {
  const char* arguments;
  const char* message;  ///< a part of the one line on standard error
};

void PrintTo(const BadCall& call, std::ostream* stream) { *stream << call.arguments; }

TEST(CommandPlan, AMaskTooLargeForTheMemoryIsRefused) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need more addresses than the limit";
#endif
  std::string slices = "[0,1,0,1,0,0]";
  slices.reserve(60'000'000);
  while (slices.size() < 56'000'000) slices += ",[0,1,0,1,0,0]";
  const std::string limit = "ulimit -v 160000;";
  const Outcome valid =
      run_magi("plan --mask -", limit, R"({"rows_q": 1, "rows_k": 1, "slices": [)" + slices + "]}");
  EXPECT_EQ(valid.code, 3);
  EXPECT_EQ(valid.err, "magi: out of memory\n");
  // What is refused anyway takes none.
  const Outcome array = run_magi("plan --mask -", limit, "[" + slices + "]");
  EXPECT_EQ(array.code, 2);
  EXPECT_TRUE(has(array.err, "mask JSON is an array; allowed")) << array.err;
}

TEST(CommandMemory, IsThePythonPackages) {
  const TemporaryFolder folder;
  folder.write("magi_attention.py", "import sys; print(sys.argv[1:]); sys.exit(2)\n");
  const std::string arguments = "memory --tokens 8 --help";
  const Outcome outcome = run_magi(arguments, "PYTHONPATH=" + folder.path(""));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.out, "['memory', '--tokens', '8', '--help']\n");
  // One that finds no packages.
  folder.write("python3", "#!/bin/sh\nexec \"$REAL\" -I -S \"$@\"\n");
  const std::string bare = "chmod +x " + folder.path("python3") +
                           "; export REAL=$(command -v python3); PATH=" + folder.path("") +
                           ":$PATH";
  const Outcome without = run_magi(arguments, bare);
  EXPECT_EQ(without.code, 3);
  EXPECT_TRUE(has(without.err, " has no package magi_attention; allowed: ")) << without.err;
}

class BadCalls : public ::testing::TestWithParam<BadCall> {};

TEST_P(BadCalls, GiveOneSentence) {
  const Outcome outcome = run_magi(GetParam().arguments);
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_TRUE(has(outcome.err, GetParam().message)) << outcome.err;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_EQ(outcome.out, "");
}

const BadCall kBadCalls[] = {
    {"", "no subcommand"},
    {"fly", "'fly' is unknown; see magi --help"},
    {"plan --fly 1", "'--fly' is unknown; see magi plan --help"},
    {"bench fly", "'fly' is unknown; see magi bench --help"},
    {"bench", "no subcommand is given; see magi bench --help"},
    {"check", "FILE is required; see magi check --help"},
    {"plan", "given by nothing; allowed: exactly one of --mask"},
    {"plan --tokens 64 --documents 32,32", "--documents and --tokens"},
    {"plan --tokens 64 --causal --block 8", "--causal and --block"},
    {"plan --tree=-1:8 --causal", "--causal is given with --tree"},
    {"plan --tokens 64 --global 4", "--global is given alone"},
    {"plan --tokens 64 --cu-seqlens-k 0,64", "--cu-seqlens-k"},
    {"plan --tokens 0", "--tokens is '0'; allowed: an integer from 1 to 1073741823"},
    {"plan --tokens", "--tokens is given without its value"},
    {"plan --tokens 64 --tokens 64", "--tokens is given 2 times; allowed: once"},
    {"plan --documents 8,-1", "--documents[1] is '-1'"},
    {"plan --documents 1073741823,1", "the sum of --documents is 1073741824"},
    {"plan --cu-seqlens 0,9,3", "cu_seqlens"},
    {"plan --tokens 64 --window 4", "--window is '4'; allowed: two integers"},
    {"plan --tokens 64 --window 4,-2", "--window is '-2'; allowed: an integer from -1"},
    {"plan --tree 0:8", "the parent of --tree[0] is 0; allowed: -1, as no node is before it"},
    {"plan --tree=-1:8,1:4", "the parent of --tree[1] is 1"},
    {"plan --tokens 64 --out ''", "--out is ''; allowed: a path"},
    {"plan --tokens 64 --ranks 0", "--ranks is '0'; allowed: an integer from 1 to 4096"},
    {"plan --tokens 4 --ranks 8 --uneven", "num_ranks"},
    {"plan --tokens 64 --heads-q 6 --heads-kv 4", "num_heads_q is 6"},
    {"plan --tokens 64 --placement best", "min_heap"},
    {"plan --tokens 64 --degree many",
     "--degree is 'many'; allowed: auto or an integer from 0 to 64"},
    {"plan --tokens 64 --stages tall", "--stages is 'tall'; allowed: auto, heads or rows"},
    {"plan --tokens 64 --work much", "work is much; allowed: keys, queries, heads or auto"},
    {"plan --tokens 64 --ranks 4 --heads-kv 4 --heads-q 4 --work heads --head-shares 3",
     "head_shares is 3; allowed: 0, or with work heads common divisors"},
    {"plan --tokens 4096 --causal --max-exchange-bytes 1000",
     "max_exchange_bytes is 1000; allowed: 0 (no bound), or for this mask and config at least"},
    {"plan --tokens 64 --layout round", "--layout is 'round'; allowed: permuted or contiguous"},
    {"plan --tokens 64 --layout contiguous --placement zigzag", "--placement is given beside"},
    {"plan --tokens 4096 --causal --placement zigzag --max-runs 1",
     "max_runs is 1; allowed: 2 or more"},
    {"plan --mask /no/such/file", "--mask is '/no/such/file' (No such file or directory)"},
    {"plan --mask /", "not a file or pipe"},
    {"show /no/such/file", "FILE is '/no/such/file'"},
    {"show /dev/null --tokens 4", "--tokens is given with FILE; allowed: one of"},
    {"show --tokens 64 --out /dev/null", "--out is '/dev/null'"},
    {"show", "given by nothing"},
    {"show --tokens 4 --text --out x", "--text is given with --out; allowed: one of the two"},
    {"show --tokens 4 --width 80", "--width is given without --text; allowed: both"},
    {"show --tokens 4 --rows 2", "--rows is '2'; allowed: two integers with ':' between"},
    {"show --tokens 4 --mask-only --rows 2:5", "rows is 2:5; allowed: BEGIN:END with 0 <= BEGIN"},
    {"show --tokens 4 --text --keys 3:3", "keys is 3:3; allowed: BEGIN:END with 0 <= BEGIN"},
    {"show --tokens 4 --text --charset x", "--charset is 'x'; allowed: blocks, ascii"},
    {"simulate", "given by nothing"},
    {"simulate --tokens 64 --growing causal", "--tokens is given with --growing"},
    {"simulate --growing causal --window 4,0", "--window is given with --growing"},
    {"simulate --growing causal,full", "--growing is 'causal,full'; allowed: one"},
    {"simulate --tokens 64 --rows-per-rank 8", "--rows-per-rank is given without"},
    {"simulate --tokens 64 --title Rings", "--title is given without --curves"},
    {"simulate --tokens 64 --strategies ring --ulysses 2", "--ulysses is 2"},
    {"simulate --growing round", "--growing"},
    {"simulate --tokens 64 --ranks 2048", "--ranks[0] is '2048'"},
    {"simulate --tokens 64 --strategies carrier", "--strategies"},
    {"simulate --tokens 64 --max-exchange-bytes 1,-1",
     "--max-exchange-bytes is '-1'; allowed: auto or"},
    {"simulate --cu-seqlens 0,64 --cu-seqlens-k 0,32", "64 queries and 32 keys"},
    {"simulate --tokens 64 --cluster /no/such/file", "--cluster is '/no/such/file'"},
    {"simulate --tokens 64 --cost /no/such/file", "--cost is '/no/such/file'"},
    {"simulate --growing varlen_causal --rows-per-rank 3000", "rows is 24000"},
};

INSTANTIATE_TEST_SUITE_P(Command, BadCalls, ::testing::ValuesIn(kBadCalls));

TEST(CommandPlan, EveryFrontEndPlansItsMask) {
  struct Call {
    const char* flags;
    Mask mask;
  };
  const std::vector<std::int32_t> cu = {0, 300, 1000};
  const std::vector<std::int32_t> cu_k = {0, 400, 1500};
  const std::vector<std::int32_t> prefix = {100, 0};
  const std::vector<PrefixTreeNode> tree = {{-1, 200}, {0, 300}, {0, 100}};
  const Call calls[] = {
      {"--documents 300,700", mask_from_cu_seqlens(cu, cu, {})},
      {"--cu-seqlens 0,300,1000 --causal", mask_from_cu_seqlens(cu, cu, {.is_causal = true})},
      {"--documents 300,700 --window 64,-1",
       mask_from_cu_seqlens(cu, cu, {.window = {.left = 64, .right = -1}})},
      {"--documents 300,700 --window 64,0 --global 8",
       mask_from_cu_seqlens(cu, cu, {.window = {.left = 64, .right = 0}, .num_global = 8})},
      {"--cu-seqlens 0,300,1000 --cu-seqlens-k 0,400,1500 --causal",
       mask_from_cu_seqlens(cu, cu_k, {.is_causal = true})},
      {"--documents 300,700 --block 50", mask_block_causal(cu, 50)},
      {"--documents 300,700 --prefix 100,0", mask_prefix_lm(cu, prefix)},
      {"--documents 300,700 --chunk-causal 50,2", mask_chunk_causal(cu, 50, 2)},
      {"--documents 300,700 --chunk-causal 50,-1", mask_chunk_causal(cu, 50, -1)},
      {"--tree=-1:200,0:300,0:100", mask_prefix_tree(tree)},
  };
  for (const Call& call : calls) {
    SCOPED_TRACE(call.flags);
    const Outcome outcome = run_magi(std::string("plan --ranks 3 --json ") + call.flags);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const Plan plan = plan_from_json(outcome.out);
    EXPECT_EQ(plan.mask, call.mask);
    EXPECT_EQ(plan.config.num_ranks, 3);
    EXPECT_TRUE(check_plan(plan).empty());
  }
}

TEST(CommandPlan, WorkAndLayoutReachTheConfiguration) {
  const auto planned = [](const std::string& flags) {
    const Outcome outcome = run_magi("plan --documents 3000,1096 --causal --json " + flags);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return plan_from_json(outcome.out);
  };
  EXPECT_EQ(planned("").config.work, WorkMode::Keys);
  EXPECT_NE(planned("").placement_q, planned("--work keys").placement_q);  // chosen for its step
  EXPECT_EQ(planned("--layout permuted").config.placement.algorithm, PlacementAlgorithm::Auto);
  const Plan queries = planned("--work queries --heads-q 8 --heads-kv 8");
  EXPECT_EQ(queries.config.work, WorkMode::Queries);
  EXPECT_GT(queries.ranks[0].q.segments.size(), 1u);
  EXPECT_TRUE(check_plan(queries).empty());
  const Plan ordered = planned("--layout contiguous");
  EXPECT_EQ(ordered.config.work, WorkMode::Auto);
  EXPECT_EQ(ordered.config.placement.algorithm, PlacementAlgorithm::SequentialSelect);
  EXPECT_EQ(planned("--work keys --layout contiguous").config.work, WorkMode::Keys);
}

TEST(CommandPlan, FlagsReachTheConfiguration) {
  const Outcome outcome = run_magi(
      "plan --tokens 4096 --causal --ranks 2 --heads-q 12 --heads-kv 4 --head-dim 64 --chunk 128 "
      "--placement min_heap --tolerance 0.25 --degree 2 --stages rows --element-bytes 4 --uneven "
      "--json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  PlanConfig config{.num_ranks = 2,
                    .num_heads_q = 12,
                    .num_heads_kv = 4,
                    .head_dim_qk = 64,
                    .head_dim_v = 64,
                    .element_bytes = 4};
  config.placement = {.algorithm = PlacementAlgorithm::MinHeap,
                      .chunk_size = 128,
                      .uneven_shard = true,
                      .token_tolerance = 0.25};
  config.overlap_degree = 2;
  config.stage_mode = StageMode::Rows;
  EXPECT_EQ(plan_from_json(outcome.out).config, config);
}

TEST(CommandPlan, TheCostModelChoosesTheDegreeUnlessOneIsAskedFor) {
  const std::string call = "plan --tokens 4096 --causal --ranks 4 --json";
  const Outcome free = run_magi(call);
  EXPECT_FALSE(plan_from_json(free.out).config.overlap_degree.has_value());
  EXPECT_EQ(run_magi(call + " --degree auto").out, free.out);
  EXPECT_EQ(plan_from_json(run_magi(call + " --degree 1").out).config.overlap_degree, 1);
}

TEST(CommandPlan, ReportsForPeopleAndWritesTheFile) {
  const TemporaryFolder folder;
  const std::string call = "plan --documents 900,124,1024 --causal --out " + folder.path("p.json");
  const Outcome outcome = run_magi(call);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(has(outcome.out, "balance"));
  const std::string zigzag = "plan --tokens 4096 --causal --ranks 4 --placement zigzag";
  EXPECT_TRUE(has(run_magi(zigzag + " --max-runs 2").out,
                  "runs       2 at most on a rank, 6 in all, that come after rows of other ranks"));
  EXPECT_TRUE(has(outcome.err, "planned in"));
  const Outcome printed = run_magi("plan --documents 900,124,1024 --causal --json");
  EXPECT_EQ(plan_from_json(folder.read("p.json")), plan_from_json(printed.out));
  EXPECT_EQ(folder.names(), std::vector<std::string>{"p.json"});
}

TEST(CommandPlan, FailedWritesLeaveNothingAndSaySo) {
  const TemporaryFolder folder;
  EXPECT_EQ(run_magi("plan --tokens 64 --out " + folder.path("no/p.json")).code, 2);
  EXPECT_TRUE(folder.names().empty());
  EXPECT_EQ(run_magi("plan --tokens 64 --out /dev/full").code, 3);
  EXPECT_EQ(run_magi("plan --tokens 64 > /dev/full").code, 3);
}

TEST(CommandPlan, HelpAndVersion) {
  for (const char* arguments : {"--help", "plan --help", "show --help", "--version"}) {
    const Outcome outcome = run_magi(arguments);
    EXPECT_EQ(outcome.code, 0);
    EXPECT_TRUE(has(outcome.out, "magi") || has(outcome.out, "--mask")) << outcome.out;
  }
}

TEST(CommandShow, DrawsPlansAndMasks) {
  const TemporaryFolder folder;
  const std::string plan = folder.path("plan.json");
  ASSERT_EQ(run_magi("plan --documents 900,124 --causal --ranks 2 --out " + plan).code, 0);
  const Outcome outcome = run_magi("show " + plan + " --out " + folder.path("a") + " --title T");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  for (const char* name : {"mask", "placement", "traffic", "timeline", "steps"}) {
    const std::string file = std::string("a/") + name + ".svg";
    EXPECT_TRUE(has(outcome.out, folder.path(file) + "\n"));
    EXPECT_TRUE(has(folder.read(file), std::string("<title>T: ") + name));
  }
  EXPECT_TRUE(has(folder.read("a/placement.svg"), ">runs</text>"));
  // A mask file, planned on the way, gives the pictures of its plan.
  const std::vector<std::int32_t> cu = {0, 900, 1024};
  folder.write("mask.json", mask_to_json(mask_from_cu_seqlens(cu, cu, {.is_causal = true})));
  ASSERT_EQ(run_magi("show " + folder.path("mask.json") + " --ranks 2 --title T --out " +
                     folder.path("b"))
                .code,
            0);
  EXPECT_EQ(folder.read("a/mask.svg"), folder.read("b/mask.svg"));
  ASSERT_EQ(run_magi("show --tokens 100 --mask-only --out " + folder.path("c")).code, 0);
  EXPECT_TRUE(has(folder.read("c/mask.svg"), "10,000 pairs (100 % of dense)"));
  ASSERT_EQ(run_magi("show " + plan + " --rows 890:910 --out " + folder.path("d")).code, 0);
  EXPECT_TRUE(has(folder.read("d/mask.svg"), "queries 890 to 910 of 1,024, keys 0 to 910 of"));
}

TEST(CommandShow, FlagsWithoutEffectAreRefusedByName) {
  const TemporaryFolder folder;
  const std::string plan = folder.path("plan.json");
  const std::string mask = folder.path("mask.json");
  ASSERT_EQ(run_magi("plan --tokens 64 --causal --ranks 2 --out " + plan).code, 0);
  folder.write("mask.json", mask_to_json({64, 64, {band_slice({0, 64}, {0, 64}, MaskType::Full)}}));
  const auto refused = [&](const std::string& flags, const std::string& part) {
    const Outcome outcome = run_magi("show " + flags + " --out " + folder.path("x"));
    EXPECT_EQ(outcome.code, 2) << flags;
    EXPECT_TRUE(has(outcome.err, part)) << outcome.err;
  };
  refused(plan + " --ranks 4", "--ranks is given with a plan's FILE, which has its own");
  refused(plan + " --work queries", "--work is given with a plan's FILE");
  refused(plan + " --causal", "--causal is given with FILE");
  refused(mask + " --window 3,0", "--window is given with FILE");
  refused(mask + " --tokens 64", "--tokens is given with FILE");
  refused("--tokens 64 --mask-only --chunk 8", "--chunk is given with --mask-only");
  refused(plan + " --mask-only --uneven", "--uneven is given with");
}

TEST(CommandShow, PrintsMaskAndTimelineAsText) {
  const TemporaryFolder folder;
  const std::string call = "show --documents 900,124 --causal --ranks 2 --text";
  const Outcome ascii = run_magi(call + " --width 60", "LC_ALL=C");
  ASSERT_EQ(ascii.code, 0) << ascii.err;
  EXPECT_TRUE(has(ascii.out, "mask\n1,024 queries, 1,024 keys, 2 slices, ")) << ascii.out;
  EXPECT_TRUE(has(ascii.out, "rank: share of work\n   0: "));
  EXPECT_TRUE(has(ascii.out, "\ntimeline\none forward pass "));
  EXPECT_FALSE(has(ascii.out, "\x1b"));
  const Outcome blocks = run_magi(call + " --charset blocks", "LC_ALL=C COLUMNS=60");
  EXPECT_TRUE(has(blocks.out, "│")) << blocks.out;
  const Outcome mask = run_magi("show --tokens 100 --mask-only --text --title T", "LC_ALL=C");
  EXPECT_TRUE(has(mask.out, "T: mask\n100 queries")) << mask.out;
  EXPECT_FALSE(has(mask.out, "timeline"));
  const Outcome part = run_magi(call + " --rows 890:910 --keys 880:920");
  EXPECT_TRUE(has(part.out, "queries 890 to 910 of 1,024, keys 880 to 920 of 1,024, ")) << part.out;
}

TEST(CommandShow, BrokenPlansAreRefused) {
  const std::string good = run_magi("plan --tokens 64 --json").out;
  auto json = nlohmann::ordered_json::parse(good);
  json["surprise"] = 1;
  for (const std::string& text :
       {good.substr(0, good.size() / 2), json.dump(), std::string("{}"), std::string("[1]")}) {
    const TemporaryFolder folder;
    const Outcome outcome = run_magi("show - --out " + folder.path("x"), "", text);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_TRUE(folder.names().empty());
  }
}

TEST(CommandPlan, TakesTheConstantsOfTheEnvironmentsFile) {
  const TemporaryFolder folder;
  const CostFile file{.machine = "slow links", .cost = {.bytes_per_second = 1e9}};
  const std::string variable =
      "MAGI_ATTENTION_COST_FILE=" + folder.write("costs", cost_file_to_json(file));
  const std::string call = "plan --tokens 4096 --causal --degree auto --json";
  const Outcome outcome = run_magi(call, variable);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Plan plan = plan_from_json(outcome.out);
  EXPECT_EQ(plan.config.cost, file.cost);
  EXPECT_NE(plan.digest, plan_from_json(run_magi(call).out).digest);
}

TEST(CommandPlan, NamesTheVariableOfABadCostFile) {
  const TemporaryFolder folder;
  const std::string call = "plan --tokens 4096 --causal";
  const Outcome missing = run_magi(call, "MAGI_ATTENTION_COST_FILE=" + folder.path("none"));
  EXPECT_EQ(missing.code, 2);
  EXPECT_TRUE(has(missing.err, "MAGI_ATTENTION_COST_FILE is")) << missing.err;
  const Outcome bad = run_magi(call, "MAGI_ATTENTION_COST_FILE=" + folder.write("bad", "{}"));
  EXPECT_EQ(bad.code, 2);
  EXPECT_TRUE(has(bad.err, "MAGI_ATTENTION_COST_FILE: cost file is")) << bad.err;
}

}  // namespace
}  // namespace magi::testing
