// SPDX-License-Identifier: Apache-2.0
#include "comm/rows/call_options.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace magi::comm {
namespace {

constexpr CallOptions kUsual{.sink_axes = 2, .num_sinks = 1, .softmax_scale = 0.125};

template <typename Change>
std::string differing_after(Change change) {
  CallOptions other = kUsual;
  change(other);
  return differing_options(pack_options(kUsual), pack_options(other));
}

// That each option is told by its name is tested in tests/runtime/call_options_test.cpp.
TEST(CallOptions, AllThatDifferAreNamed) {
  EXPECT_EQ(differing_after([](auto&) {}), "");
  EXPECT_EQ(differing_after([](auto& o) { o.is_backward = true; }), "forward or backward");
  EXPECT_EQ(differing_after([](auto& o) { o.num_sinks = 2; }), "sink");
  EXPECT_EQ(differing_after([](auto& o) { o.softcap = 30.0, o.has_dlse = true; }), "softcap, dlse");
}

TEST(CallOptions, NumbersThatAreOneInFloat32AreEqual) {
  EXPECT_EQ(differing_after([](auto& o) { o.softmax_scale = std::nextafter(0.125, 0.0); }), "");
  EXPECT_EQ(differing_after([](auto& o) { o.softmax_scale = std::nextafter(0.125, 1.0); }), "");
  EXPECT_EQ(differing_after([](auto& o) { o.softmax_scale = std::nextafter(0.125f, 1.0f); }),
            "softmax_scale");
  EXPECT_EQ(differing_after([](auto& o) { o.softmax_scale = -0.125; }), "softmax_scale");
  EXPECT_EQ(differing_after([](auto& o) { o.softcap = -0.0; }), "");
}

TEST(CallOptions, ASinkOfAnyShapePoisonsNoOtherOption) {
  EXPECT_EQ(differing_after([](auto& o) { o.sink_axes = 4, o.num_sinks = 1'000'000; }), "sink");
}

}  // namespace
}  // namespace magi::comm
