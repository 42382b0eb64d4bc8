// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "cli/run_magi.hpp"
#include "cli/temporary_folder.hpp"
#include "magi/batch.hpp"
#include "magi/mask_builders.hpp"

namespace magi::testing {
namespace {

TEST(CommandBatch, PlansALengthsFileAndChecksWhatItWrote) {
  const TemporaryFolder folder;
  folder.write("lengths", "900\n40000\n0\n300\n");
  const std::string plan = folder.path("plan.json");
  const Outcome made = run_magi("batch --lengths-file " + folder.path("lengths") + " --out " +
                                plan + " --picture " + folder.path("batch.svg"));
  EXPECT_EQ(made.code, 0) << made.err;
  EXPECT_EQ(made.out.substr(0, 37), "4 samples on 8 ranks of 16384 rows\nmi");
  const Outcome read = run_magi("batch --json --check " + plan);
  EXPECT_EQ(read.err, "sound\n");
  EXPECT_EQ(batch_from_json(read.out).samples.size(), 4u);
}

TEST(CommandBatch, SamplesMayBeMasks) {
  const TemporaryFolder folder;
  const std::vector<PrefixTreeNode> tree{{-1, 30}, {0, 20}, {0, 10}};
  folder.write("tree", mask_to_json(mask_prefix_tree(tree)));
  folder.write("uneven", mask_to_json({4, 5, {}}));
  const std::string path = folder.path("tree");
  const Outcome made = run_magi("batch --json --masks " + path + "," + path);
  const BatchSample sample{60, area(mask_prefix_tree(tree))};
  EXPECT_EQ(batch_from_json(made.out).samples, (std::vector<BatchSample>{sample, sample}));
  EXPECT_EQ(run_magi("batch --masks " + folder.path("uneven")).err,
            "magi: " + folder.path("uneven") + ": keys is 5; allowed: 4, as many as queries\n");
}

TEST(CommandBatch, RefusesInOneSentence) {
  EXPECT_EQ(run_magi("batch").err,
            "magi: source of samples is missing; allowed: one of --lengths, --lengths-file, "
            "--masks, --check\n");
  EXPECT_EQ(
      run_magi("batch --lengths 9 --rows-per-rank 4 --ranks 2").err,
      "magi: sample 0: rows is 9; allowed: up to 8 on 2 ranks of 4 rows; it needs 3 ranks, or "
      "rows_per_rank 5\n");
}

}  // namespace
}  // namespace magi::testing
