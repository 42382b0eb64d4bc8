// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "capi/owned_handles.hpp"
#include "magi/mask_builders.hpp"
#include "magi/mask_runs.hpp"

namespace magi::capi_test {
namespace {

const std::vector<std::int32_t> kDocuments{0, 5, 6, 20, 48};
constexpr std::int64_t kNumEntries = 5;

TEST(MaskAbi, RangesGiveTheMaskOfTheCppCall) {
  const std::int32_t q[] = {0, 10, 10, 30};
  const std::int32_t k[] = {0, 20, 5, 30};
  const std::int32_t types[] = {MAGI_MASK_CAUSAL, MAGI_MASK_BIDIRECTIONAL_CAUSAL};
  magi_range_lists lists{.struct_size = sizeof(lists),
                         .q_ranges = q,
                         .num_q_ranges = 2,
                         .k_ranges = k,
                         .num_k_ranges = 2,
                         .types = types,
                         .num_types = 2,
                         .rows_q = 30,
                         .rows_k = 31};
  const auto mask = made<magi_mask>([&](auto** m) { return magi_mask_from_ranges(&lists, m); });
  const Range q_ranges[] = {{0, 10}, {10, 30}};
  const Range k_ranges[] = {{0, 20}, {5, 30}};
  const MaskType mask_types[] = {MaskType::Causal, MaskType::BidirectionalCausal};
  EXPECT_TRUE(mask_of(mask.get()) == mask_from_ranges(q_ranges, k_ranges, mask_types, 30, 31));
  lists.num_k_ranges = 1;
  magi_mask* refused = nullptr;
  EXPECT_EQ(magi_mask_from_ranges(&lists, &refused), MAGI_INVALID_ARGUMENT);
  lists.num_k_ranges = -1;
  EXPECT_EQ(magi_mask_from_ranges(&lists, &refused), MAGI_INVALID_ARGUMENT);
  const std::int32_t bad_types[] = {4};
  lists = {.struct_size = sizeof(lists), .types = bad_types, .num_types = 1};
  EXPECT_EQ(magi_mask_from_ranges(&lists, &refused), MAGI_INVALID_ARGUMENT);
  EXPECT_STREQ(magi_last_error_message(), "types[0] is 4; allowed: 0 to 3");
}

TEST(MaskAbi, DocumentFrontEndsGiveTheMasksOfTheCppCalls) {
  const std::int32_t* sums = kDocuments.data();
  const magi_document_rule rule{.struct_size = sizeof(rule),
                                .is_causal = 0,
                                .window_left = 6,
                                .window_right = 0,
                                .num_global = 2};
  const auto window = made<magi_mask>([&](auto** m) {
    return magi_mask_from_cu_seqlens(sums, kNumEntries, sums, kNumEntries, &rule, m);
  });
  EXPECT_TRUE(mask_of(window.get()) ==
              mask_from_cu_seqlens(kDocuments, kDocuments,
                                   {.window = {.left = 6, .right = 0}, .num_global = 2}));
  const std::vector<std::int32_t> fewer{0, 1, 3, 4, 6};
  const magi_document_rule above{
      .struct_size = sizeof(above), .window_left = 6, .window_right = 2, .has_rows_above = 1};
  const auto unaligned = made<magi_mask>([&](auto** m) {
    return magi_mask_from_cu_seqlens(sums, kNumEntries, fewer.data(), kNumEntries, &above, m);
  });
  EXPECT_TRUE(mask_of(unaligned.get()) ==
              mask_from_cu_seqlens(kDocuments, fewer,
                                   {.window = {.left = 6, .right = 2}, .has_rows_above = true}));
}

TEST(MaskAbi, FlagsOfDocumentsAreZeroOrOne) {
  const auto refusal = [](const magi_document_rule& rule) -> std::string {
    magi_mask* refused = nullptr;
    EXPECT_EQ(magi_mask_from_cu_seqlens(kDocuments.data(), kNumEntries, kDocuments.data(),
                                        kNumEntries, &rule, &refused),
              MAGI_INVALID_ARGUMENT);
    return magi_last_error_message();
  };
  magi_document_rule rule{
      .struct_size = sizeof(rule), .is_causal = 2, .window_left = -1, .window_right = -1};
  EXPECT_EQ(refusal(rule), "rule.is_causal is 2; allowed: 0 or 1");
  rule.is_causal = 0;
  rule.has_rows_above = -1;
  EXPECT_EQ(refusal(rule), "rule.has_rows_above is -1; allowed: 0 or 1");
}

TEST(MaskAbi, FieldsOfFormsGiveTheMaskOfTheCppCall) {
  const std::int32_t samples[] = {7, 8, 7};
  const std::int64_t offsets[] = {0, 2, 3};
  magi_form_field field{"samples", samples, 3, offsets, 3};
  const auto mask =
      made<magi_mask>([&](auto** m) { return magi_mask_from_form("token_ids", &field, 1, m); });
  const FormField given[] = {{"samples", samples, offsets}};
  EXPECT_EQ(mask_of(mask.get()), mask_from_form("token_ids", given));
  magi_mask* refused = nullptr;
  field.num_row_offsets = -1;
  EXPECT_EQ(magi_mask_from_form("token_ids", &field, 1, &refused), MAGI_INVALID_ARGUMENT);
  field.name = nullptr;
  EXPECT_EQ(magi_mask_from_form("token_ids", &field, 1, &refused), MAGI_INVALID_ARGUMENT);
  EXPECT_EQ(magi_mask_from_form(nullptr, &field, 0, &refused), MAGI_INVALID_ARGUMENT);
}

TEST(MaskAbi, OtherFrontEndsGiveTheMasksOfTheCppCalls) {
  const magi_window_mask range{.struct_size = sizeof(range),
                               .q_begin = 2,
                               .q_end = 20,
                               .k_begin = 1,
                               .k_end = 25,
                               .left = 3,
                               .right = 1,
                               .rows_q = 20,
                               .rows_k = 30};
  const auto window = made<magi_mask>([&](auto** m) { return magi_mask_from_window(&range, m); });
  EXPECT_TRUE(mask_of(window.get()) ==
              mask_from_window({2, 20}, {1, 25}, {.left = 3, .right = 1}, 20, 30));
  const std::vector<std::uint8_t> matrix{1, 0, 0, 1, 1, 0};
  const auto boolean =
      made<magi_mask>([&](auto** m) { return magi_mask_from_matrix(matrix.data(), 2, 3, m); });
  EXPECT_TRUE(mask_of(boolean.get()) == mask_from_matrix(matrix, 2, 3));
  magi_mask* refused = nullptr;
  EXPECT_EQ(magi_mask_from_matrix(matrix.data(), -1, 3, &refused), MAGI_INVALID_ARGUMENT);
}

TEST(MaskAbi, RunsOfRowsGiveTheMaskOfTheCppCall) {
  const Mask truth = mask_prefix_lm(kDocuments, std::vector<std::int32_t>{2, 1, 4, 9});
  const RowRuns runs = runs_of(truth);
  const auto mask = mask_from(truth);
  magi_buffer* offsets = nullptr;
  magi_buffer* table = nullptr;
  ASSERT_EQ(magi_mask_runs(mask.get(), &offsets, &table), MAGI_OK);
  EXPECT_EQ(array_of<std::int64_t>(offsets), runs.offsets);
  const auto pairs = array_of<std::int32_t>(table);
  ASSERT_EQ(pairs.size(), 2 * runs.runs.size());
  EXPECT_EQ(pairs[2], runs.runs[1].begin);
  const auto again = made<magi_mask>([&](auto** m) {
    return magi_mask_from_runs(runs.offsets.data(), truth.rows_q, pairs.data(),
                               static_cast<std::int64_t>(runs.runs.size()), truth.rows_k, m);
  });
  EXPECT_TRUE(mask_of(again.get()) == mask_from_runs(runs.offsets, runs.runs, truth.rows_k));
  const auto turned = made<magi_mask>([&](auto** m) { return magi_mask_transpose(mask.get(), m); });
  EXPECT_TRUE(mask_of(turned.get()) == transposed(truth));
  magi_buffer_destroy(offsets);
  magi_buffer_destroy(table);
  EXPECT_EQ(magi_mask_runs(mask.get(), &offsets, nullptr), MAGI_INVALID_ARGUMENT);
  magi_mask* refused = nullptr;
  EXPECT_EQ(magi_mask_from_runs(runs.offsets.data(), -1, nullptr, 0, 3, &refused),
            MAGI_INVALID_ARGUMENT);
}

TEST(MaskAbi, AnswersQueries) {
  const Mask truth = mask_prefix_lm(kDocuments, std::vector<std::int32_t>{2, 1, 4, 9});
  const auto mask = mask_from(truth);
  std::int64_t pairs = 0;
  EXPECT_EQ(magi_mask_area(mask.get(), &pairs), MAGI_OK);
  EXPECT_EQ(pairs, area(truth));
  Reach farthest;
  EXPECT_EQ(magi_mask_reach(mask.get(), &farthest.before, &farthest.after), MAGI_OK);
  EXPECT_EQ(farthest, reach(truth));
  EXPECT_EQ(magi_mask_reach(mask.get(), nullptr, &farthest.after), MAGI_INVALID_ARGUMENT);
  const auto typed =
      made<magi_buffer>([&](auto** b) { return magi_mask_typed_slices(mask.get(), b); });
  const auto table = array_of<std::int32_t>(typed.get());
  Mask rebuilt{.rows_q = truth.rows_q, .rows_k = truth.rows_k};
  for (std::size_t i = 0; i < table.size(); i += 5) {
    rebuilt.slices.push_back(band_slice({table[i], table[i + 1]}, {table[i + 2], table[i + 3]},
                                        static_cast<MaskType>(table[i + 4])));
  }
  EXPECT_EQ(expand(rebuilt), expand(truth));
}

TEST(MaskAbi, JsonGoesBothWays) {
  const auto mask = mask_from(mask_block_causal(kDocuments, 3));
  const auto json = made<magi_buffer>([&](auto** b) { return magi_mask_to_json(mask.get(), b); });
  const std::string text = text_of(json.get());
  EXPECT_EQ(text.size(), magi_buffer_size_bytes(json.get()));
  const auto back =
      made<magi_mask>([&](auto** m) { return magi_mask_from_json(text.data(), text.size(), m); });
  EXPECT_TRUE(mask_of(back.get()) == mask_of(mask.get()));
  magi_mask* refused = nullptr;
  EXPECT_EQ(magi_mask_from_json(text.data(), text.size() / 2, &refused), MAGI_INVALID_ARGUMENT);
  EXPECT_EQ(magi_mask_from_json(nullptr, 0, &refused), MAGI_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace magi::capi_test
