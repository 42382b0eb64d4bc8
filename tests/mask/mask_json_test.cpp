// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "magi/mask_builders.hpp"
#include "support/random_mask.hpp"
#include "support/random_streams.hpp"
#include "support/refusal.hpp"

namespace magi::testing {
namespace {

const char* const kGood =
    R"({"rows_q": 8, "rows_k": 9, "slices": [[0, 4, 0, 5, null, 1],
        {"q": [4, 8], "k": [0, 9], "type": "bi_causal"}, [1, 2, 3, 4, -3, null]]})";

std::string message_of(const std::string& text) {
  return refusal_of([&] { mask_from_json(text); });
}

/// A document around one slice.
std::string with_slice(const std::string& slice) {
  return R"({"rows_q": 8, "rows_k": 9, "slices": [)" + slice + "]}";
}

TEST(MaskJson, ReadsBothFormsOfSlices) {
  const Mask expected{8,
                      9,
                      {{0, 4, 0, 5, -kBandInfinity, 1},
                       band_slice({4, 8}, {0, 9}, MaskType::BidirectionalCausal),
                       {1, 2, 3, 4, -3, kBandInfinity}}};
  EXPECT_EQ(mask_from_json(kGood), expected);
}

TEST(MaskJson, RandomMasksComeBackTheSame) {
  for (RandomStream& random : RandomStreams(500)) {
    const Mask mask = random_mask(random, {.min_rows = 0});
    EXPECT_EQ(mask_from_json(mask_to_json(mask)), mask) << describe(mask);
  }
  const Mask extreme{
      kMaxRows, kMaxRows, {{0, kMaxRows, 0, kMaxRows, kBandInfinity, kBandInfinity}}};
  EXPECT_EQ(mask_from_json(mask_to_json(extreme)), extreme);
}

TEST(MaskJson, WrongStructureIsNamed) {
  EXPECT_EQ(message_of("[]"),
            "mask JSON is an array; allowed: an object with rows_q, rows_k, slices");
  EXPECT_EQ(message_of(R"({"rows_q": 1, "rows_k": 1})"),
            "mask JSON is without key slices; allowed: all of rows_q, rows_k, slices");
  EXPECT_EQ(message_of(R"({"rows_q": 1, "rows_k": 1, "slices": [], "window": 3})"),
            "mask JSON is holding key window; allowed: rows_q, rows_k, slices");
  EXPECT_EQ(message_of(R"({"rows_q": 1, "rows_q": 2, "rows_k": 1, "slices": []})"),
            "mask JSON is holding key rows_q twice; allowed: each key once");
  EXPECT_EQ(message_of(R"({"rows_q": 1, "rows_k": 1, "slices": {}})"),
            "mask JSON: slices is an object; allowed: [q0, q1, k0, k1, d_min, d_max]");
  EXPECT_EQ(message_of(with_slice("[0, 1, 0, 1, 0]")),
            "mask JSON: slices[0] is too short; allowed: [q0, q1, k0, k1, d_min, d_max]");
  EXPECT_EQ(message_of(with_slice("7")),
            "mask JSON: slices[0] is 7; allowed: a row or an object with q, k, type");
  EXPECT_EQ(message_of(with_slice(R"({"q": [0, 1], "k": [0, 1]})")),
            "mask JSON: slices[0] is without key type; allowed: all of q, k, type");
  EXPECT_EQ(
      message_of(with_slice(R"({"q": [0, 1, 2], "k": [0, 1], "type": "full"})")),
      "mask JSON: slices[0].q[2] is 2; allowed: an integer from 0 to 1073741823 in [begin, end]");
  EXPECT_EQ(message_of(with_slice(R"({"q": [0, 1], "k": [0, 1], "type": 1})")),
            "mask JSON: slices[0].type is 1; allowed: full, causal, inv_causal, bi_causal");
  EXPECT_EQ(message_of(with_slice(R"({"q": [0, 1], "k": [0, 1], "type": "diagonal"})")),
            "mask JSON: slices[0].type is diagonal; allowed: full, causal, inv_causal, bi_causal");
}

TEST(MaskJson, WrongNumbersAreNamed) {
  const std::string rows = "; allowed: an integer from 0 to 1073741823";
  EXPECT_EQ(message_of(with_slice("[0, 1.0, 0, 1, 0, 0]")),
            "mask JSON: slices[0][1] is 1.0" + rows);
  EXPECT_EQ(message_of(with_slice("[0, null, 0, 1, 0, 0]")),
            "mask JSON: slices[0][1] is null" + rows);
  EXPECT_EQ(message_of(with_slice("[true, 1, 0, 1, 0, 0]")),
            "mask JSON: slices[0][0] is true" + rows);
  EXPECT_EQ(message_of(with_slice("[\"0\", 1, 0, 1, 0, 0]")),
            "mask JSON: slices[0][0] is 0" + rows);
  EXPECT_EQ(message_of(with_slice("[0, 1, 0, 4294967297, 0, 0]")),
            "mask JSON: slices[0][3] is 4294967297" + rows);
  EXPECT_EQ(message_of(with_slice("[0, 1, 0, 18446744073709551615, 0, 0]")),
            "mask JSON: slices[0][3] is 18446744073709551615" + rows);
  EXPECT_EQ(message_of(with_slice("[-9223372036854775808, 1, 0, 1, 0, 0]")),
            "mask JSON: slices[0][0] is -9223372036854775808" + rows);
  EXPECT_EQ(
      message_of(with_slice("[0, 1, 0, 1, 0, 1073741825]")),
      "mask JSON: slices[0][5] is 1073741825; allowed: an integer from -1073741824 to 1073741824");
  EXPECT_EQ(message_of(with_slice("[0, 4, 0, 4, 3, 2]")),
            "slices[0].d_max is 2; allowed: 3 to 1073741824");
  EXPECT_EQ(message_of(with_slice("[0, 9, 0, 1, 0, 0]")), "slices[0].q1 is 9; allowed: 0 to 8");
  EXPECT_EQ(
      message_of(with_slice(R"({"q": [3, 2], "k": [0, 1], "type": "full"})")),
      "mask JSON: slices[0].q[1] is 2; allowed: an integer from 0 to 1073741823 in [begin, end]");
  EXPECT_EQ(message_of(R"({"rows_q": 1073741824, "rows_k": 1, "slices": []})"),
            "mask JSON: rows_q is 1073741824" + rows);
  // Not numbers of JSON at all, or beyond what a double holds.
  for (const char* const number : {"NaN", "Infinity", "1e999", "0x10", "01", "+1", "1_000"}) {
    const std::string message = message_of(with_slice("[0, " + std::string(number) + "]"));
    EXPECT_NE(message.find("; allowed: valid JSON"), std::string::npos) << message;
  }
}

TEST(MaskJson, EveryTruncationIsRefused) {
  const std::string good = kGood;
  for (std::size_t length = 0; length < good.size(); ++length) {
    const std::string message = message_of(good.substr(0, length));
    EXPECT_NE(message.find("; allowed: "), std::string::npos) << length << " " << message;
  }
}

TEST(MaskJson, MembersMayComeInAnyOrder) {
  EXPECT_EQ(mask_from_json(R"({"slices": [{"type": "causal", "k": [0, 9], "q": [4, 8]}],
                               "rows_k": 9, "rows_q": 8})"),
            (Mask{8, 9, {band_slice({4, 8}, {0, 9}, MaskType::Causal)}}));
}

TEST(MaskJson, HostileInputIsRefusedBeforeItCosts) {
  const std::string array = "mask JSON is an array; allowed: an object with rows_q, rows_k, slices";
  EXPECT_EQ(message_of(std::string(5'000'000, '[')), array);
  std::string objects;
  for (int n = 0; n < 100000; ++n) objects += "[{\"q\":";
  EXPECT_EQ(message_of(objects), array);
  std::string keys = "{";
  for (int n = 0; n < 100000; ++n) keys += "\"" + std::to_string(n) + "\": 1, ";
  EXPECT_EQ(message_of(keys), "mask JSON is holding key 0; allowed: rows_q, rows_k, slices");
  std::string row = "0";
  for (int n = 0; n < 100000; ++n) row += ",0";
  EXPECT_EQ(message_of(with_slice("[" + row + "]")),
            "mask JSON: slices[0][6] is one too many; allowed: [q0, q1, k0, k1, d_min, d_max]");
  EXPECT_EQ(message_of(R"({"rows_q": [[1], {"a": [2]}, 3]})"),
            "mask JSON: rows_q is an array; allowed: an integer from 0 to 1073741823");
  const std::string long_text = message_of("{\"" + std::string(1'000'000, 'x') + "\": 1}");
  EXPECT_LT(long_text.size(), 300u);
  const std::string bytes = message_of("{\"rows_q\": \xff\xfe\x01}");
  for (const char c : bytes) EXPECT_TRUE(c >= ' ' && c <= '~') << bytes;
}

}  // namespace
}  // namespace magi::testing
