// SPDX-License-Identifier: Apache-2.0
#include "demo/scenes.hpp"

#include <algorithm>

#include "demo/embedding.hpp"
#include "magi/mask_builders.hpp"

namespace magi::cli {
namespace {

constexpr std::int32_t kAnchorRows = 64;

std::vector<Range> sections_of(const std::vector<std::int32_t>& cu_seqlens) {
  std::vector<Range> sections;
  if (cu_seqlens.size() > 4) {
    for (std::size_t d = 0; d + 1 < cu_seqlens.size(); ++d) {
      sections.push_back({cu_seqlens[d], cu_seqlens[d + 1]});
    }
    return sections;
  }
  constexpr std::int64_t kParts = 8;
  const std::int64_t rows = cu_seqlens.back();
  for (std::int64_t part = 0; part < kParts; ++part) {
    sections.push_back({static_cast<std::int32_t>(rows * part / kParts),
                        static_cast<std::int32_t>(rows * (part + 1) / kParts)});
  }
  return sections;
}

std::vector<std::int32_t> third_of_each(const std::vector<std::int32_t>& cu_seqlens) {
  std::vector<std::int32_t> thirds;
  for (std::size_t d = 0; d + 1 < cu_seqlens.size(); ++d) {
    thirds.push_back((cu_seqlens[d + 1] - cu_seqlens[d]) / 3);
  }
  return thirds;
}

}  // namespace

Mask mixed_mask(const std::vector<std::int32_t>& cu_seqlens) {
  const std::vector<Range> sections = sections_of(cu_seqlens);
  const std::int32_t rows = cu_seqlens.back();
  Mask mask{.rows_q = rows, .rows_k = rows, .slices = {}};
  constexpr MaskType kTurns[] = {MaskType::Full, MaskType::Causal, MaskType::InverseCausal,
                                 MaskType::BidirectionalCausal};
  for (std::size_t s = 0; s < sections.size(); ++s) {
    const MaskType type = kTurns[s % 4];
    Range keys = sections[s];
    if (type == MaskType::BidirectionalCausal) keys.begin = sections[s - 1].begin;
    mask.slices.push_back(band_slice(sections[s], keys, type));
  }
  const std::int32_t anchor = std::min(kAnchorRows, sections[0].size());
  mask.slices.push_back(band_slice({sections[0].end, rows}, {0, anchor}, MaskType::Full));
  return mask;
}

std::vector<Scene> make_scenes(const Corpus& corpus, std::int32_t num_ranks, DType type,
                               const CostModel& cost) {
  const std::vector<std::int32_t>& cu = corpus.cu_seqlens;
  const std::int32_t rows = corpus.num_tokens();
  const PlanConfig config{.num_ranks = num_ranks,
                          .num_heads_q = kDemoHeadsQ,
                          .num_heads_kv = kDemoHeadsKv,
                          .head_dim_qk = kDemoHeadDim,
                          .head_dim_v = kDemoHeadDim,
                          .element_bytes = static_cast<std::int32_t>(dtype_bytes(type)),
                          .cost = cost};
  const auto scene = [&](const char* name, const char* slug, const Mask& mask) {
    return Scene{
        .name = name, .slug = slug, .plan = std::make_shared<const Plan>(make_plan(mask, config))};
  };
  const Window window{.left = std::max(rows / 16, 1), .right = 0};
  return {
      scene("Packed causal documents", "causal-documents",
            mask_from_cu_seqlens(cu, cu, {.is_causal = true})),
      scene("Sliding window", "sliding-window",
            mask_from_window({0, rows}, {0, rows}, window, rows, rows)),
      scene("Prefix-LM documents", "prefix-documents", mask_prefix_lm(cu, third_of_each(cu))),
      scene("All four slice types", "four-types", mixed_mask(cu)),
  };
}

}  // namespace magi::cli
