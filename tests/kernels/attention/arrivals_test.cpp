// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "kernels/attention/backend.hpp"
#include "kernels/attention/checks.hpp"
#include "support/refusal.hpp"

namespace magi::test {
namespace {

using testing::refusal_of;

TEST(ArrivalsTest, BackendsThatTakeNoInFlightKeysSaySo) {
  const auto backend = find_backend("cpu", kCpuDevice);
  EXPECT_FALSE(backend->takes_in_flight_keys());
  const std::string refusal = "backend is cpu; allowed: backends that take in-flight keys";
  EXPECT_EQ(refusal_of([&] { backend->prepare_in_flight_forward({}, {}, {}); }), refusal);
  EXPECT_EQ(refusal_of([&] { backend->prepare_in_flight_backward({}, {}, {}); }), refusal);
  const std::string not_prepared =
      "arrivals is given; allowed: none where nothing was prepared for in-flight keys";
  const auto forward = backend->prepare_forward({}, {});
  EXPECT_EQ(refusal_of([&] { forward->begin_in_flight({}, {}, {}, nullptr); }), not_prepared);
  const auto backward = backend->prepare_backward({}, {});
  EXPECT_EQ(refusal_of([&] { backward->begin_in_flight({}, {}, {}, nullptr); }), not_prepared);
}

TEST(ArrivalsTest, WhatIsMissingIsNamed) {
  const std::uint64_t word = 0;
  const KeyArrivals good{.flags = &word, .expected = &word, .spin_budget_ns = 5};
  check_arrivals(good);
  const auto refusal_without = [&](auto poison) {
    KeyArrivals bad = good;
    poison(bad);
    return refusal_of([&] { check_arrivals(bad); });
  };
  EXPECT_EQ(refusal_without([](KeyArrivals& bad) { bad.flags = nullptr; }),
            "arrivals.flags is null; allowed: device memory");
  EXPECT_EQ(refusal_without([](KeyArrivals& bad) { bad.expected = nullptr; }),
            "arrivals.expected is null; allowed: device memory");
  EXPECT_EQ(refusal_without([](KeyArrivals& bad) { bad.spin_budget_ns = -1; }),
            "arrivals.spin_budget_ns is -1; allowed: 0 to 10000000000");
  EXPECT_EQ(refusal_without([](KeyArrivals& bad) { bad.spin_budget_ns = kMaxSpinBudgetNs + 1; }),
            "arrivals.spin_budget_ns is 10000000001; allowed: 0 to 10000000000");
}

TEST(ArrivalsTest, KeysThatAreThereBeforeAttentionNeedNoFlags) { check_arrivals({}); }

}  // namespace
}  // namespace magi::test
