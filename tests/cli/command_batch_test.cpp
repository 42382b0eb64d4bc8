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
  folder.write("lengths", "\n900\r\n40000\n0\n \n300");
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
  folder.write("plan", made.out);
  const std::string check = "batch --check " + folder.path("plan");
  EXPECT_EQ(run_magi(check).err, "sound; samples that are not causal need masks\n");
  EXPECT_EQ(run_magi(check + " --masks " + path + "," + path).err, "sound\n");
  EXPECT_EQ(run_magi(check + " --lengths 60,60").err,
            "magi: pairs of sample 0 is 1830; allowed: 1630, of 60 rows, as in --check\n");
  EXPECT_EQ(run_magi(check + " --ranks 2").err,
            "magi: --ranks is given with a plan, which has its own; allowed: one of the two\n");
  EXPECT_EQ(run_magi("batch --masks " + folder.path("uneven")).err,
            "magi: " + folder.path("uneven") + ": keys is 5; allowed: 4, as many as queries\n");
}

TEST(CommandBatch, AFileWithoutLengthsIsAnEmptyBatch) {
  const TemporaryFolder folder;
  folder.write("lengths", "\r\n");
  const std::string batch = "batch --ranks 4096 --lengths-file " + folder.path("lengths");
  EXPECT_EQ(run_magi(batch + " --picture " + folder.path("batch.svg")).out.substr(0, 41),
            "0 samples on 4096 ranks of 16384 rows\nmic");
  folder.write("lengths", "3\n4,5\n");
  EXPECT_EQ(run_magi(batch).err,
            "magi: line 2 of --lengths-file is '4,5'; allowed: an integer from 0 to 1073741823\n");
}

TEST(CommandBatch, RefusesInOneSentence) {
  EXPECT_EQ(run_magi("batch --lengths 9 --ranks 4097").err,
            "magi: --ranks is '4097'; allowed: an integer from 1 to 4096\n");
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
