// SPDX-License-Identifier: Apache-2.0
#include "demo/embedding.hpp"

#include <array>
#include <cmath>
#include <vector>

#include "base/half.hpp"
#include "base/random.hpp"

namespace magi::cli {
namespace {

constexpr std::size_t kFeatures = 64;
constexpr std::size_t kDim = kDemoHeadDim;
constexpr std::size_t kLongestString = 4;
constexpr float kQueryNoise = 0.5f;

using Context = std::array<float, kFeatures>;
/// [features][dim]: context -> one head.
using Projection = std::array<std::array<float, kDim>, kFeatures>;

/// Uniform on [-sqrt(3), sqrt(3)]: mean 0, variance 1.
float noise(RandomStream& random) {
  const double unit = static_cast<double>(random() >> 11) * 0x1p-53;
  return static_cast<float>((2.0 * unit - 1.0) * std::sqrt(3.0));
}

Projection random_projection(RandomStream& random) {
  Projection projection;
  for (auto& row : projection) {
    for (float& weight : row) weight = noise(random);
  }
  return projection;
}

Projection with_noise(Projection projection, RandomStream& random) {
  for (auto& row : projection) {
    for (float& weight : row) weight += kQueryNoise * noise(random);
  }
  return projection;
}

/// Adds the vector of a string: a sign per feature, drawn from the string's own stream.
void add_string(std::string_view string, Context& context) {
  std::uint64_t hash = 0xcbf29ce484222325u + string.size();  // FNV-1a
  for (const char c : string) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  RandomStream random(hash);
  const std::uint64_t signs = random();
  // Longer strings say more about the place: weights 1, 2, 3, 4.
  const auto weight = static_cast<float>(string.size());
  for (std::size_t f = 0; f < kFeatures; ++f) {
    context[f] += ((signs >> f) & 1u) != 0 ? weight : -weight;
  }
}

std::vector<Context> contexts_of(const Corpus& corpus) {
  std::vector<Context> contexts(corpus.tokens.size());
  for (std::int32_t document = 0; document < corpus.num_documents(); ++document) {
    const auto d = static_cast<std::size_t>(document);
    const auto begin = static_cast<std::size_t>(corpus.cu_seqlens[d]);
    const auto end = static_cast<std::size_t>(corpus.cu_seqlens[d + 1]);
    for (std::size_t t = begin; t < end; ++t) {
      Context& context = contexts[t];
      context.fill(0.0f);
      for (std::size_t n = 1; n <= kLongestString && t + 1 >= begin + n; ++n) {
        add_string(std::string_view(corpus.tokens).substr(t + 1 - n, n), context);
      }
      float square = 0.0f;
      for (const float x : context) square += x * x;
      for (float& x : context) x /= std::sqrt(square);
    }
  }
  return contexts;
}

void project(const Context& context, const Projection& projection, float* head) {
  std::array<float, kDim> sum{};
  for (std::size_t f = 0; f < kFeatures; ++f) {
    for (std::size_t d = 0; d < kDim; ++d) sum[d] += context[f] * projection[f][d];
  }
  for (std::size_t d = 0; d < kDim; ++d) head[d] = sum[d];
}

void rotate(std::size_t position, float* head) {
  constexpr std::size_t kTurned = kDim / 2;
  for (std::size_t pair = 0; pair < kTurned / 2; ++pair) {
    const double exponent = -2.0 * static_cast<double>(pair) / kTurned;
    const double angle = static_cast<double>(position) * std::pow(10000.0, exponent);
    const auto cosine = static_cast<float>(std::cos(angle));
    const auto sine = static_cast<float>(std::sin(angle));
    const float x = head[2 * pair];
    const float y = head[2 * pair + 1];
    head[2 * pair] = cosine * x - sine * y;
    head[2 * pair + 1] = sine * x + cosine * y;
  }
}

struct Projections {
  std::array<Projection, kDemoHeadsKv> k, v;
  std::array<Projection, kDemoHeadsQ> q, dout;
};

Projections make_projections() {
  RandomStream random(2024);
  Projections all;
  for (Projection& projection : all.k) projection = random_projection(random);
  for (Projection& projection : all.v) projection = random_projection(random);
  for (std::size_t head = 0; head < kDemoHeadsQ; ++head) {
    all.q[head] = with_noise(all.k[head / (kDemoHeadsQ / kDemoHeadsKv)], random);
    all.dout[head] = random_projection(random);
  }
  return all;
}

}  // namespace

Embedding embed(const Corpus& corpus) {
  const std::vector<Context> contexts = contexts_of(corpus);
  const Projections projections = make_projections();
  const std::int64_t tokens = corpus.num_tokens();
  Embedding made{.q = HostTensor<float>({tokens, kDemoHeadsQ, kDemoHeadDim}),
                 .k = HostTensor<float>({tokens, kDemoHeadsKv, kDemoHeadDim}),
                 .v = HostTensor<float>({tokens, kDemoHeadsKv, kDemoHeadDim}),
                 .dout = HostTensor<float>({tokens, kDemoHeadsQ, kDemoHeadDim})};
  const auto head_at = [](HostTensor<float>& tensor, std::size_t token, std::size_t heads,
                          std::size_t head) {
    return tensor.elements().data() + (token * heads + head) * kDim;
  };
  for (std::int32_t document = 0; document < corpus.num_documents(); ++document) {
    const auto d = static_cast<std::size_t>(document);
    const auto begin = static_cast<std::size_t>(corpus.cu_seqlens[d]);
    const auto end = static_cast<std::size_t>(corpus.cu_seqlens[d + 1]);
    for (std::size_t t = begin; t < end; ++t) {
      for (std::size_t head = 0; head < kDemoHeadsKv; ++head) {
        project(contexts[t], projections.k[head], head_at(made.k, t, kDemoHeadsKv, head));
        rotate(t - begin, head_at(made.k, t, kDemoHeadsKv, head));
        project(contexts[t], projections.v[head], head_at(made.v, t, kDemoHeadsKv, head));
      }
      const std::size_t next = t + 1 < end ? t + 1 : t;
      for (std::size_t head = 0; head < kDemoHeadsQ; ++head) {
        project(contexts[t], projections.q[head], head_at(made.q, t, kDemoHeadsQ, head));
        rotate(t - begin, head_at(made.q, t, kDemoHeadsQ, head));
        project(contexts[next], projections.dout[head], head_at(made.dout, t, kDemoHeadsQ, head));
      }
    }
  }
  return made;
}

void round_to_bfloat16(Embedding& embedding) {
  for (HostTensor<float>* tensor : {&embedding.q, &embedding.k, &embedding.v, &embedding.dout}) {
    for (float& value : tensor->elements()) value = bfloat16_to_float(float_to_bfloat16(value));
  }
}

}  // namespace magi::cli
