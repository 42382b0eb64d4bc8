// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/checks.hpp"

#include <gtest/gtest.h>

#include <string>

#include "magi/error.hpp"

namespace magi::test {
namespace {

TensorView rows_of(std::int64_t heads) {
  return contiguous_view(nullptr, DType::Float32, {8, heads, 16});
}

/// What is said of a forward and of a backward, which must be the same.
std::string refusal_of(std::int64_t heads_q, std::int64_t heads_kv) {
  const AttentionLimits limits = attention_limits(kCpuDevice);
  const TensorView q = rows_of(heads_q), k = rows_of(heads_kv);
  std::string texts[2];
  const auto note = [](std::string& text, const auto& check) {
    try {
      check();
    } catch (const InvalidArgument& error) {
      text = error.what();
    }
  };
  ForwardArgs forward;
  forward.q = q;
  forward.k = forward.v = k;
  note(texts[0], [&] { check_problem(limits, forward); });
  BackwardArgs backward;
  backward.q = backward.dout = q;
  backward.k = backward.v = k;
  note(texts[1], [&] { check_problem(limits, backward); });
  EXPECT_EQ(texts[0], texts[1]);
  return texts[0];
}

TEST(AttentionChecks, EachKvHeadServesAsManyQueryHeads) {
  EXPECT_EQ(refusal_of(6, 3), "");
  EXPECT_EQ(refusal_of(3, 2), "heads_q is 3; allowed: multiples of heads_kv, 2");
  EXPECT_EQ(refusal_of(2, 4), "heads_q is 2; allowed: multiples of heads_kv, 4");
  EXPECT_EQ(refusal_of(0, 2), "heads_q is 0; allowed: multiples of heads_kv, 2");
  EXPECT_EQ(refusal_of(4, 0), "heads_kv is 0; allowed: 1 or more");
}

}  // namespace
}  // namespace magi::test
