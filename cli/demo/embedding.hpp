// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "demo/corpus.hpp"
#include "magi/tensor.hpp"

namespace magi::cli {

/// Heads of the demonstration: grouped queries, two query heads to a kv head.
inline constexpr std::int32_t kDemoHeadsQ = 4;
inline constexpr std::int32_t kDemoHeadsKv = 2;
inline constexpr std::int32_t kDemoHeadDim = 32;

/// The tensors that attention reads, made from text. Rows are tokens of the packed sequence,
/// float32.
struct Embedding {
  HostTensor<float> q;     ///< [tokens, kDemoHeadsQ, kDemoHeadDim]
  HostTensor<float> k;     ///< [tokens, kDemoHeadsKv, kDemoHeadDim]
  HostTensor<float> v;     ///< [tokens, kDemoHeadsKv, kDemoHeadDim]
  HostTensor<float> dout;  ///< [tokens, kDemoHeadsQ, kDemoHeadDim]: what backward starts from
};

/// Nothing is trained, yet attention has something to find. A token's context is the normalised sum
/// of fixed pseudo-random vectors, one for each of the 1- to 4-byte strings that end at it inside
/// its document. Fixed random projections of the context give k and v; a query head projects with
/// its kv head's matrix plus noise of its own, so that tokens in like contexts attend to each
/// other. The first half of each head of q and k is turned by the position in the document (rotary
/// embedding, Su et al. 2021). dout projects the context of the next token. Deterministic.
Embedding embed(const Corpus& corpus);

/// Rounds every value to the nearest bfloat16, which attention on a GPU reads.
void round_to_bfloat16(Embedding& embedding);

}  // namespace magi::cli
