// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "magi/mask_builders.hpp"
#include "magi/mask_runs.hpp"
#include "support/refusal.hpp"

namespace magi {
namespace {

namespace fs = std::filesystem;
using Numbers = std::vector<std::int32_t>;

std::string read(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string message_of(const std::string& text) {
  return testing::refusal_of([&] { mask_from_json(text); });
}

std::string json_of(const Numbers& numbers) {
  std::ostringstream text;
  const char* separator = "[";
  for (const std::int32_t number : numbers) {
    text << separator << number;
    separator = ", ";
  }
  return (numbers.empty() ? "[" : text.str()) + "]";
}

// tests/python compares each form with its definition, pair by pair.

/// Files that users start from, and what the Python package's own builders make of them.
TEST(MaskForms, ExamplesHoldTheRecordedSlices) {
  int num_files = 0;
  for (const auto& entry : fs::directory_iterator(MAGI_EXAMPLE_MASKS)) {
    if (entry.path().extension() != ".json") continue;
    SCOPED_TRACE(entry.path().filename());
    const Mask mask = mask_from_json(read(entry.path()));
    const Mask wanted = mask_from_json(read(fs::path(MAGI_MASK_DATA) / entry.path().filename()));
    EXPECT_EQ(runs_of(mask), runs_of(wanted));
    EXPECT_EQ(mask.slices.size(), wanted.slices.size());
    EXPECT_TRUE(is_mask_json(read(entry.path())));
    ++num_files;
  }
  EXPECT_GE(num_files, 12);
}

TEST(MaskForms, SamplesShareTheirBeginnings) {
  // Tokens in the order of nodes: 1 2, then 3 and 4 5 below them, and 9.
  const Mask mask =
      mask_from_json(R"({"form": "token_ids", "samples": [[1, 2, 3], [9], [1, 2, 4, 5], [1, 2]]})");
  const std::vector<PrefixTreeNode> tree{{-1, 2}, {0, 1}, {0, 2}, {-1, 1}};
  EXPECT_EQ(runs_of(mask), runs_of(mask_prefix_tree(tree)));
}

TEST(MaskForms, BooleansAreCellsOfMatricesAlone) {
  EXPECT_EQ(mask_from_json(R"({"form": "matrix", "visible": [[true, false], [1, 1]]})"),
            (Mask{2, 2, {{0, 2, 0, 2, -kBandInfinity, 0}}}));
  EXPECT_EQ(message_of(R"({"form": "tree", "parents": [true], "lengths": [1]})"),
            "mask JSON: parents[0] is true; allowed: an integer from -1 to 1073741823");
}

TEST(MaskForms, FieldsGiveTheMaskOfTheText) {
  const Numbers causal{0}, columns{2, 4, 1, 3, 3, 3}, samples{7, 8, 7}, rows{5};
  const std::vector<std::int64_t> pairs{0, 2, 4, 6}, uneven{0, 2, 3};
  const FormField flash[] = {
      {"startend_row_indices", columns, pairs}, {"causal", causal}, {"rows_q", rows}};
  EXPECT_EQ(mask_from_form("flashmask", flash), mask_from_json(R"({"form": "flashmask",
      "startend_row_indices": [[2, 4], [1, 3], [3, 3]], "causal": false, "rows_q": 5})"));
  const FormField trie[] = {{"samples", samples, uneven}};
  EXPECT_EQ(mask_from_form("token_ids", trie),
            mask_from_json(R"({"form": "token_ids", "samples": [[7, 8], [7]]})"));
}

TEST(MaskForms, WrongFieldsAreNamed) {
  const auto refusal = [](std::string_view form, const std::vector<FormField>& fields) {
    return testing::refusal_of([&] { mask_from_form(form, fields); });
  };
  const Numbers one{1}, two{1, -2};
  const std::vector<std::int64_t> rows{0, 1, 2}, falling{0, 2, 1, 2}, beyond{0, 3};
  EXPECT_EQ(refusal("circle", {}).substr(0, 36), "form is circle; allowed: block_mask,");
  EXPECT_EQ(refusal("tree", {{"roots", one}}),
            "field of the form is roots; allowed: parents, lengths");
  EXPECT_EQ(refusal("tree", {{"parents", one}, {"parents", one}}),
            "field parents is repeated; allowed: once");
  EXPECT_EQ(refusal("tree", {{"parents", one}}), "field lengths is missing; allowed: a value");
  EXPECT_EQ(refusal("tree", {{"parents", two}}), "parents[1] is -2; allowed: -1 to 1073741823");
  EXPECT_EQ(refusal("window", {{"rows", two}}),
            "number of entries of rows is 2; allowed: 1, a value");
  EXPECT_EQ(refusal("document_ids", {{"causal", two}}),
            "number of entries of causal is 2; allowed: 1, a value");
  EXPECT_EQ(refusal("interval_ends", {{"ends", two, rows}}),
            "ends[1][0] is -2; allowed: 0 to 1073741823");
  for (const auto& offsets : {falling, beyond, std::vector<std::int64_t>{}}) {
    EXPECT_EQ(refusal("interval_ends", {{"ends", two, offsets}}).substr(0, 16), "offsets of ends ");
  }
  EXPECT_EQ(refusal("tree", {{"parents", one, beyond}}).substr(0, 19), "offsets of parents ");
}

TEST(MaskForms, WrongFormsAreNamed) {
  EXPECT_EQ(message_of(R"({"form": "trees"})"),
            "mask JSON: form is trees; allowed: block_mask, cu_seqlens, document_ids, flashmask, "
            "interval_ends, intervals, matrix, packed_seq_params, prefix_lm, token_ids, tree, "
            "window");
  EXPECT_EQ(message_of(R"({"form": 3})").substr(0, 31), "mask JSON: form is 3; allowed: ");
  EXPECT_EQ(message_of(R"({"form": ["tree"]})").substr(0, 28), "mask JSON: form is an array;");
  EXPECT_EQ(message_of(R"({"form": {}})").substr(0, 29), "mask JSON: form is an object;");
  EXPECT_EQ(message_of(R"({"rows_q": 3, "form": "tree"})"),
            "mask JSON is holding key form; allowed: rows_q, rows_k, slices");
  EXPECT_EQ(message_of(R"({"form": "tree", "parents": [-1], "rows": 3})"),
            "mask JSON is holding key rows; allowed: form, parents, lengths");
  EXPECT_EQ(message_of(R"({"form": "tree", "parents": [-1]})"),
            "mask JSON is without key lengths; allowed: all of form, parents, lengths");
  EXPECT_EQ(message_of(R"({"form": "tree", "parents": [-1], "parents": [-1]})"),
            "mask JSON is holding key parents twice; allowed: each key once");
  EXPECT_EQ(message_of(R"({"form": "tree", "form": "tree"})"),
            "mask JSON is holding key form twice; allowed: each key once");
}

TEST(MaskForms, WrongValuesAreNamed) {
  EXPECT_EQ(message_of(R"({"form": "tree", "parents": -1})"),
            "mask JSON: parents is -1; allowed: an array of integers");
  EXPECT_EQ(message_of(R"({"form": "tree", "parents": {"a": 1}})"),
            "mask JSON: parents is an object; allowed: an array of integers");
  EXPECT_EQ(message_of(R"({"form": "tree", "parents": [-1, [0]]})"),
            "mask JSON: parents[1] is an array; allowed: an integer from -1 to 1073741823");
  EXPECT_EQ(message_of(R"({"form": "token_ids", "samples": [[1, 2], 3]})"),
            "mask JSON: samples[1] is 3; allowed: an array of integers");
  EXPECT_EQ(message_of(R"({"form": "token_ids", "samples": [[1, 2], [3, "x"]]})"),
            "mask JSON: samples[1][1] is x; allowed: an integer from -2147483648 to 2147483647");
  EXPECT_EQ(message_of(R"({"form": "window", "rows": [8], "left": 1, "right": 0})"),
            "mask JSON: rows is an array; allowed: an integer from 0 to 1073741823");
  EXPECT_EQ(message_of(R"({"form": "cu_seqlens", "cu_seqlens_q": [0, 4], "causal": 1})"),
            "mask JSON: causal is 1; allowed: true, false");
  EXPECT_NE(message_of(R"({"form": "tree", "parents": [-1)").find("cut off"), std::string::npos);
  EXPECT_EQ(message_of(R"({"form": "tree", "parents": )" + std::string(5'000'000, '[')),
            "mask JSON: parents[0] is an array; allowed: an integer from -1 to 1073741823");
}

const std::pair<const char*, const char*> kWrongNumbers[] = {
    {R"({"form": "tree", "parents": [-1, 1], "lengths": [4, 2]})",
     "parents[1] is 1; allowed: -1, or the index of a node before it"},
    {R"({"form": "tree", "parents": [-1, 0], "lengths": [4]})",
     "number of lengths is 1; allowed: 2, as parents"},
    {R"({"form": "tree", "parents": [-1], "lengths": [-4]})",
     "mask JSON: lengths[0] is -4; allowed: an integer from 0 to 1073741823"},
    {R"({"form": "tree", "parents": [-1, 0], "lengths": [1073741823, 1]})",
     "sum of lengths is 1073741824; allowed: at most 1073741823"},
    {R"({"form": "token_ids", "samples": [[1], []]})",
     "samples[1] is empty; allowed: one token or more"},
    {R"({"form": "cu_seqlens", "cu_seqlens_q": [0, 4, 3]})",
     "cu_seqlens_q[2] is 3; allowed: 4 to 1073741823"},
    {R"({"form": "cu_seqlens", "cu_seqlens_q": [0, 4], "window_size": [1]})",
     "number of entries of window_size is 1; allowed: 2, left and right"},
    {R"({"form": "prefix_lm", "cu_seqlens": [0, 4], "prefix_lengths": []})",
     "number of prefix_lengths is 0; allowed: 1, one for each document of cu_seqlens"},
    {R"({"form": "prefix_lm", "cu_seqlens": [], "prefix_lengths": []})",
     "cu_seqlens is empty; allowed: bounds that begin with 0"},
    {R"({"form": "packed_seq_params", "cu_seqlens_q": [0, 4], "cu_seqlens_kv": [0, 4],
           "cu_seqlens_q_padded": [0, 3]})",
     "length of document 0 in cu_seqlens_q is 4; allowed: at most 3, its room in "
     "cu_seqlens_q_padded"},
    {R"({"form": "packed_seq_params", "cu_seqlens_q": [0, 4], "cu_seqlens_kv": [0, 2, 4]})",
     "number of entries of cu_seqlens_kv is 3; allowed: 2, as cu_seqlens_q"},
    {R"({"form": "flashmask", "startend_row_indices": [[1, 1, 1]]})",
     "number of integers of startend_row_indices[0] is 3; allowed: 1, 2 where causal is true"},
    {R"({"form": "flashmask", "startend_row_indices": [[1], [1, 1]]})",
     "startend_row_indices[1] is an array of 2; allowed: 1 integers, as startend_row_indices[0]"},
    {R"({"form": "flashmask", "startend_row_indices": [[1], [3]]})",
     "startend_row_indices[1][0] is 3; allowed: at most 2, the rows"},
    {R"({"form": "interval_ends", "ends": [[1], [1]], "rows_k": 2})",
     "ends is an array of 2; allowed: an odd number of rows"},
    {R"({"form": "interval_ends", "ends": [[3]], "rows_k": 2})",
     "ends[0][0] is 3; allowed: at most 2, the keys"},
    {R"({"form": "intervals", "offsets": [0, 2], "intervals": [[0, 1]], "rows_k": 2})",
     "number of intervals is 1; allowed: 2, the last of offsets"},
    {R"({"form": "intervals", "offsets": [0, 1], "intervals": [[1, 0]], "rows_k": 2})",
     "intervals[0] is [1, 0]; allowed: begin <= end <= 2, the keys"},
    {R"({"form": "block_mask", "rows_q": 4, "rows_k": 4, "block_size": [2, 2],
           "kv_indices": [[], [2]], "full_kv_indices": [[], []], "offsets": [0],
           "intervals": []})",
     "kv_indices[1][0] is 2; allowed: at most 1, the last block of keys"},
    {R"({"form": "block_mask", "rows_q": 4, "rows_k": 4, "block_size": [2, 2],
           "kv_indices": [[]], "full_kv_indices": [[], []], "offsets": [0], "intervals": []})",
     "number of rows of kv_indices is 1; allowed: 2, the rows of blocks"},
    {R"({"form": "matrix", "visible": [[0, 2]]})",
     "mask JSON: visible[0][1] is 2; allowed: an integer from 0 to 1"},
    {R"({"form": "matrix", "visible": [[0, 1], [1]]})",
     "visible[1] is an array of 1; allowed: 2 integers, as visible[0]"},
    {R"({"form": "window", "rows": 1e3, "left": 0, "right": 0})",
     "mask JSON: rows is 1e3; allowed: an integer from 0 to 1073741823"},
    {R"({"form": "window", "rows": 18446744073709551615, "left": 0, "right": 0})",
     "mask JSON: rows is 18446744073709551615; allowed: an integer from 0 to 1073741823"},
};

TEST(MaskForms, WrongNumbersAreNamed) {
  for (const auto& [text, message] : kWrongNumbers) EXPECT_EQ(message_of(text), message) << text;
}

TEST(MaskForms, ShortTextsDoNotFillTheMemory) {
  EXPECT_EQ(mask_from_json(R"({"form": "window", "rows": 1073741823, "left": 5, "right": 0})")
                .slices.size(),
            1u);
  EXPECT_EQ(
      mask_from_json(R"({"form": "tree", "parents": [-1], "lengths": [1073741823]})").slices.size(),
      1u);
  Numbers ids;
  for (int i = 0; i < 12000; ++i) ids.push_back(i % 2);
  const std::string text = json_of(ids);
  EXPECT_EQ(message_of(R"({"form": "document_ids", "document_ids": )" + text + "}"),
            "number of slices of document_ids is 36006000; allowed: at most 16777216");
}

}  // namespace
}  // namespace magi
