// SPDX-License-Identifier: Apache-2.0
#include "demo/embedding.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/half.hpp"

namespace magi::cli {
namespace {

Corpus repeated_text() {
  Corpus corpus;
  while (corpus.tokens.size() < 480) corpus.tokens += "the quick brown fox jumps over a lazy dog. ";
  corpus.cu_seqlens = {0, 200, static_cast<std::int32_t>(corpus.tokens.size())};
  return corpus;
}

bool is_equal(const HostTensor<float>& a, const HostTensor<float>& b) {
  return std::equal(a.elements().begin(), a.elements().end(), b.elements().begin(),
                    b.elements().end());
}

TEST(Embedding, IsDeterministicAndFinite) {
  const Corpus corpus = repeated_text();
  const Embedding first = embed(corpus);
  const Embedding second = embed(corpus);
  for (const auto tensor : {&Embedding::q, &Embedding::k, &Embedding::v, &Embedding::dout}) {
    EXPECT_TRUE(is_equal(first.*tensor, second.*tensor));
    for (const float value : (first.*tensor).elements()) ASSERT_TRUE(std::isfinite(value));
  }
}

TEST(Embedding, AttentionIsFarFromUniform) {
  const Embedding made = embed(repeated_text());
  // Row 150 of the first document over its 151 keys, head 0.
  const float* q = made.q.elements().data() + 150 * kDemoHeadsQ * kDemoHeadDim;
  std::vector<double> weights;
  double sum = 0.0;
  for (std::size_t j = 0; j <= 150; ++j) {
    const float* k = made.k.elements().data() + j * kDemoHeadsKv * kDemoHeadDim;
    double dot = 0.0;
    for (std::size_t d = 0; d < kDemoHeadDim; ++d) dot += double{q[d]} * double{k[d]};
    weights.push_back(std::exp(dot / std::sqrt(double{kDemoHeadDim})));
    sum += weights.back();
  }
  const double most = *std::max_element(weights.begin(), weights.end()) / sum;
  EXPECT_GT(most, 5.0 / 151);
  EXPECT_LT(most, 0.95);  // and no single key takes all
}

TEST(Embedding, DocumentsDoNotLeakIntoEachOther) {
  Corpus corpus = repeated_text();
  const Embedding before = embed(corpus);
  std::fill(corpus.tokens.begin(), corpus.tokens.begin() + 200, 'z');
  const Embedding after = embed(corpus);
  const auto second = [](const HostTensor<float>& tensor) {
    return tensor.elements().subspan(200 * kDemoHeadsKv * kDemoHeadDim);
  };
  EXPECT_TRUE(
      std::equal(second(before.k).begin(), second(before.k).end(), second(after.k).begin()));
  EXPECT_FALSE(is_equal(before.k, after.k));
}

TEST(Embedding, RoundedValuesAreTheNearestBfloat16) {
  const Embedding before = embed(repeated_text());
  Embedding after = embed(repeated_text());
  round_to_bfloat16(after);
  EXPECT_FALSE(is_equal(before.q, after.q));
  for (const auto tensor : {&Embedding::q, &Embedding::k, &Embedding::v, &Embedding::dout}) {
    const auto exact = (before.*tensor).elements();
    const auto rounded = (after.*tensor).elements();
    for (std::size_t i = 0; i < exact.size(); ++i) {
      EXPECT_LE(std::abs(rounded[i] - exact[i]), std::abs(exact[i]) * 0x1p-8f) << i;
      EXPECT_EQ(bfloat16_to_float(float_to_bfloat16(rounded[i])), rounded[i]) << i;
    }
  }
}

}  // namespace
}  // namespace magi::cli
