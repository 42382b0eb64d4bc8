// SPDX-License-Identifier: Apache-2.0
#include "draw/svg.hpp"

#include <gtest/gtest.h>

#include <set>

namespace magi::draw {
namespace {

TEST(Svg, TextIsEscaped) {
  EXPECT_EQ(escape_xml("a < b & \"c\" > d\x01"), "a &lt; b &amp; &quot;c&quot; &gt; d");
  // Valid characters stay; cut, overlong, surrogate and stray bytes become U+FFFD.
  EXPECT_EQ(escape_xml("\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80"),
            "\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80");
  for (const char* bad : {"\xff", "\xc3", "\x80", "\xc0", "\xed"}) {
    EXPECT_EQ(escape_xml(std::string("a") + bad + "b"),
              "a\xef\xbf\xbd"
              "b");
  }
  for (const char* bad : {"\xed\xa0\x80", "\xe0\x80\xaf", "\xef\xbf\xbe", "\xf4\x90\x80\x80"}) {
    EXPECT_EQ(escape_xml(bad).substr(0, 3), "\xef\xbf\xbd") << bad;
  }
  Svg svg(10, 10, "<&>", "");
  svg.text(1, 2, "</svg>");
  const std::string picture = std::move(svg).finish();
  EXPECT_NE(picture.find("<title>&lt;&amp;&gt;</title>"), std::string::npos);
  EXPECT_NE(picture.find("&lt;/svg&gt;</text>"), std::string::npos);
}

TEST(Svg, RanksHaveDistinctColours) {
  for (const std::int32_t num_ranks : {1, 2, 8, 9, 64}) {
    std::set<std::string> colours;
    for (std::int32_t rank = 0; rank < num_ranks; ++rank) {
      colours.insert(rank_colour(rank, num_ranks));
    }
    EXPECT_EQ(colours.size(), static_cast<std::size_t>(num_ranks));
  }
}

TEST(Svg, TextContrastsWithItsGround) {
  EXPECT_EQ(text_colour_on(scale_colour(1.0)), "#ffffff");
  EXPECT_EQ(text_colour_on(scale_colour(0.0)), kInk);
}

}  // namespace
}  // namespace magi::draw
