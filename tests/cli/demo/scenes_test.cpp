// SPDX-License-Identifier: Apache-2.0
#include "demo/scenes.hpp"

#include <gtest/gtest.h>

#include <set>

#include "magi/mask_runs.hpp"

namespace magi::cli {
namespace {

std::set<MaskType> types_of(const Mask& mask) {
  std::set<MaskType> types;
  for (const BandSlice& slice : mask.slices) {
    for (const TypedSlice& part : to_typed(slice)) types.insert(part.type);
  }
  return types;
}

TEST(Scenes, TheMixedMaskHasAllTypesAndNoOverlap) {
  for (const auto& cu : {std::vector<std::int32_t>{0, 100, 150, 180, 300, 420, 500},
                         std::vector<std::int32_t>{0, 800}, std::vector<std::int32_t>{0, 64}}) {
    SCOPED_TRACE(cu.size());
    const Mask mask = mixed_mask(cu);
    validate(mask);
    const RowRuns rows = runs_of(mask);  // refuses slices that overlap
    for (std::size_t i = 1; i < rows.offsets.size(); ++i) {
      EXPECT_LT(rows.offsets[i - 1], rows.offsets[i]) << "row " << i - 1 << " is empty";
    }
    EXPECT_EQ(types_of(mask).size(), 4u);
  }
}

TEST(Scenes, FourMasksOfTheWholeSequence) {
  Corpus corpus;
  corpus.tokens.assign(1000, 'x');
  corpus.cu_seqlens = {0, 10, 400, 401, 700, 1000};
  const std::vector<Scene> scenes = make_scenes(corpus, 3, DType::Float32);
  ASSERT_EQ(scenes.size(), 4u);
  std::set<std::string> slugs;
  for (const Scene& scene : scenes) {
    slugs.insert(scene.slug);
    EXPECT_EQ(scene.plan->mask.rows_q, 1000);
    EXPECT_EQ(scene.plan->config.num_ranks, 3);
    EXPECT_GT(area(scene.plan->mask), 0);
  }
  EXPECT_EQ(slugs.size(), 4u);
}

}  // namespace
}  // namespace magi::cli
