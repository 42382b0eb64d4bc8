// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "draw/pictures.hpp"
#include "draw/xml.hpp"

namespace magi::draw {
namespace {

TEST(BatchPicture, HasABoxForEachPartAndStaysSmall) {
  const std::vector<BatchSample> few{causal_sample(900), causal_sample(30000), causal_sample(0)};
  const std::string picture = batch_picture(plan_batch(few, {.num_ranks = 4}), "a <b>");
  EXPECT_EQ(testing::xml_fault(picture), "");
  EXPECT_NE(picture.find("sample 0, 900 of 900 rows, rank"), std::string::npos);
  const auto summary = picture.find(">3 samples on 4 ranks in 1 micro-batch: ");
  EXPECT_LT(summary, picture.find("<text"));  // of the picture, then as a text, once
  EXPECT_EQ(picture.find(">3 samples", picture.find(">3 samples", summary + 1) + 1),
            std::string::npos);
  EXPECT_EQ(testing::xml_fault(batch_picture(plan_batch({}, {}), "")), "");
  const std::vector<BatchSample> many(5000, causal_sample(8192));
  const std::string large = batch_picture(
      plan_batch(many, {.num_ranks = 512, .rows_per_rank = 8192, .devices_per_node = 8}), "t");
  EXPECT_EQ(testing::xml_fault(large), "");
  EXPECT_LT(large.size(), 5'000'000u);
}

}  // namespace
}  // namespace magi::draw
