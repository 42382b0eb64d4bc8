// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "demo/corpus.hpp"
#include "magi/plan.hpp"
#include "magi/tensor.hpp"

namespace magi::cli {

/// One mask of the demonstration with its plan.
struct Scene {
  std::string name;
  std::string slug;  ///< of file names
  std::shared_ptr<const Plan> plan;
};

/// Packed causal documents; a sliding window over the whole sequence; prefix-LM documents; all four
/// slice types mixed. type: of what attention reads; plans are made under `cost`.
std::vector<Scene> make_scenes(const Corpus& corpus, std::int32_t num_ranks, DType type,
                               const CostModel& cost = {});

/// Sections of the sequence attend in turn fully, causally, inverse causally, and inside a
/// bidirectional band over themselves and the section before; all later sections see the leading
/// rows of the first. Sections are the documents, or eight equal parts when there are fewer than
/// four.
Mask mixed_mask(const std::vector<std::int32_t>& cu_seqlens);

}  // namespace magi::cli
