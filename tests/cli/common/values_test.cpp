// SPDX-License-Identifier: Apache-2.0
#include "common/values.hpp"

#include <gtest/gtest.h>

#include "support/refusal.hpp"

namespace magi::cli {
namespace {

using testing::refusal_of;

TEST(Values, IntegersAreWholeAndInside) {
  EXPECT_EQ(parse_int("--n", "0", {0, 7}), 0);
  EXPECT_EQ(parse_int("--n", "7", {0, 7}), 7);
  EXPECT_EQ(parse_int("--n", "-1", {-1, 7}), -1);
  for (const char* bad :
       {"", "8", "-1", "+1", "1 ", " 1", "1.0", "0x1", "abc", "1e3", "99999999999999999999"}) {
    EXPECT_EQ(refusal_of([&] {
                parse_int("--n", bad, {0, 7});
              }),
              std::string("--n is '") + bad + "'; allowed: an integer from 0 to 7");
  }
}

TEST(Values, AutoStandsBesideIntegers) {
  EXPECT_EQ(parse_int_or_auto("--n", "auto", {0, 7}), std::nullopt);
  EXPECT_EQ(parse_int_or_auto("--n", "7", {0, 7}), 7);
  EXPECT_EQ(refusal_of([] {
              parse_int_or_auto("--n", "8", {0, 7});
            }),
            "--n is '8'; allowed: auto or an integer from 0 to 7");
}

TEST(Values, NumbersAreFiniteAndInside) {
  EXPECT_EQ(parse_number("--x", "0.5", 0, 1), 0.5);
  EXPECT_EQ(parse_number("--x", "1e-3", 0, 1), 1e-3);
  for (const char* bad : {"", "nan", "inf", "-0.5", "1.5", "x", "0.5x"}) {
    EXPECT_EQ(refusal_of([&] { parse_number("--x", bad, 0, 1); }),
              std::string("--x is '") + bad + "'; allowed: a number from 0 to 1");
  }
}

TEST(Values, ListsNameTheElement) {
  EXPECT_EQ(parse_ints("--l", "1,2,3", {0, 9}), (std::vector<std::int32_t>{1, 2, 3}));
  EXPECT_EQ(refusal_of([] {
              parse_ints("--l", "1,,3", {0, 9});
            }),
            "--l[1] is ''; allowed: an integer from 0 to 9");
  EXPECT_EQ(refusal_of([] {
              parse_ints("--l", "1,2,", {0, 9});
            }),
            "--l[2] is ''; allowed: an integer from 0 to 9");
}

TEST(Values, PairsHaveTwoParts) {
  EXPECT_EQ(parse_pair("--w", "-1,5", ',', {-1, 9}),
            (std::pair<std::int32_t, std::int32_t>{-1, 5}));
  EXPECT_EQ(refusal_of([] {
              parse_pair("--w", "1", ',', {0, 9});
            }),
            "--w is '1'; allowed: two integers with ',' between, each from 0 to 9");
  EXPECT_NE(refusal_of([] { parse_pair("--w", "1,2,3", ',', {0, 9}); }), "accepted");
}

TEST(Values, CountsMayBeInUnitsOf1024) {
  EXPECT_EQ(count_of("8192"), 8192);
  EXPECT_EQ(count_of("8k"), 8192);
  EXPECT_EQ(count_of("0"), 0);
  for (const char* bad :
       {"", "k", "-1", "+1", "8K", "8kk", "8 k", "1.5k", "9223372036854775807k"}) {
    EXPECT_EQ(count_of(bad), std::nullopt) << bad;
  }
}

TEST(Values, QueryHeadsAreAMultipleOfKvHeads) {
  EXPECT_EQ(parse_heads("--heads", "64:8"), (std::pair<std::int32_t, std::int32_t>{64, 8}));
  EXPECT_EQ(refusal_of([] { parse_heads("--heads", "64:7"); }),
            "--heads is '64:7'; allowed: query heads that are a multiple of the kv heads");
  EXPECT_NE(refusal_of([] { parse_heads("--heads", "64"); }), "accepted");
  EXPECT_NE(refusal_of([] { parse_heads("--heads", "0:0"); }), "accepted");
}

TEST(Values, HostileTextIsShownOnOneShortLine) {
  EXPECT_EQ(shown("a\nb\x1b[31m\x7f"), "'a?b?[31m?'");
  EXPECT_EQ(shown(std::string(1000, 'x')).size(), 65u);
}

}  // namespace
}  // namespace magi::cli
