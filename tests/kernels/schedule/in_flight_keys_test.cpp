// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/host/in_flight_keys.hpp"

#include <gtest/gtest.h>

#include "magi/error.hpp"
#include "mask/random_mask.hpp"
#include "support/random_streams.hpp"

namespace magi::test {
namespace {

TEST(InFlightKeysTest, SourcesAreThoseOfTheRows) {
  for (RandomStream& random : testing::RandomStreams(200)) {
    InFlightKeys coming{.num_sources = random.between(1, kMaxKeySources)};
    std::vector<std::uint32_t> source_of(64, 0);
    for (std::int32_t row = random.between(0, 9); row < 60;) {
      const KeyPart part{{row, row + random.between(1, 4)},
                         random.between(0, coming.num_sources - 1)};
      for (std::int32_t r = part.rows.begin; r < part.rows.end; ++r) {
        source_of[static_cast<std::size_t>(r)] = std::uint32_t{1} << part.source;
      }
      coming.parts.push_back(part);
      row = part.rows.end + random.between(0, 5);
    }
    check_in_flight_keys(coming, 64, 4);
    for (std::int32_t begin = 0; begin < 64; ++begin) {
      std::uint32_t sources = 0;
      for (std::int32_t end = begin; end <= 64; ++end) {
        ASSERT_EQ(sources_of(coming, {begin, end}), sources) << begin << " to " << end;
        if (end < 64) sources |= source_of[static_cast<std::size_t>(end)];
      }
    }
  }
}

TEST(InFlightKeysTest, SlicesAreCutWhereOwnRowsEnd) {
  const InFlightKeys coming{.own_rows = 128};
  const std::vector<BandSlice> slices{
      {0, 9, 100, 150}, {0, 300, 0, 300, -kBandInfinity, 0}, {0, 5, 128, 140}, {2, 5, 0, 128}};
  const std::vector<BandSlice> expected{{0, 9, 100, 128},
                                        {0, 9, 128, 150},
                                        {0, 300, 0, 128, -kBandInfinity, 0},
                                        {128, 300, 128, 300, -kBandInfinity, 0},
                                        {0, 5, 128, 140},
                                        {2, 5, 0, 128}};
  EXPECT_EQ(cut_at_own_rows(coming, slices), expected);
  EXPECT_EQ(cut_at_own_rows({}, slices), slices);
}

TEST(InFlightKeysTest, RefusesWhatNoRunCouldWaitFor) {
  const InFlightKeys good{.parts = {{{3, 5}, 0}, {{5, 9}, 1}}, .num_sources = 2, .num_sections = 2};
  check_in_flight_keys(good, 9, 4);
  EXPECT_THROW(check_in_flight_keys(good, 8, 4), InvalidArgument);
  EXPECT_THROW(check_in_flight_keys(good, 9, 3), InvalidArgument);
  const auto refuses = [&](auto poison) {
    InFlightKeys bad = good;
    poison(bad);
    EXPECT_THROW(check_in_flight_keys(bad, 9, 4), InvalidArgument);
  };
  refuses([](InFlightKeys& bad) { bad.num_sources = 1; });
  refuses([](InFlightKeys& bad) { bad.own_rows = -1; });
  refuses([](InFlightKeys& bad) { bad.own_rows = 4; });
  refuses([](InFlightKeys& bad) { bad = {.own_rows = 10}; });
  refuses([](InFlightKeys& bad) { bad.num_sources = 32; });
  refuses([](InFlightKeys& bad) { bad.num_sections = 0; });
  refuses([](InFlightKeys& bad) { bad.parts[0].source = -1; });
  refuses([](InFlightKeys& bad) { bad.parts[0].rows.end = 6; });
  refuses([](InFlightKeys& bad) { bad.parts[0].rows.begin = -1; });
  refuses([](InFlightKeys& bad) { bad.parts[0].rows.end = 3; });
}

}  // namespace
}  // namespace magi::test
