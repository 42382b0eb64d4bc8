// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "demo/embedding.hpp"
#include "demo/results.hpp"
#include "demo/scenes.hpp"

namespace magi::cli {

/// Largest difference between one tensor and dense float64 attention, and what the error rule
/// allows.
struct TensorCheck {
  std::string name;
  double error = 0.0;
  double allowed = 0.0;
  bool holds = false;
};

/// The findings on one mask.
struct SceneCheck {
  std::vector<TensorCheck> tensors;  ///< out, lse, dQ, dK, dV
  std::int64_t forward_bytes = 0;    ///< sent by all ranks, as counted while running
  std::int64_t backward_bytes = 0;
  std::string byte_fault;  ///< the first pair whose counted bytes are not the plan's; "" for none
  std::int64_t bound_bytes = 0;  ///< that no placement within the plan's limits is below, forward
  double forward_seconds = 0.0;  ///< of the slowest rank
  double backward_seconds = 0.0;
  double reference_seconds = 0.0;

  bool holds() const;
};

/// Compares the gathered results with attention computed densely in float64 from the mask alone,
/// and the counted bytes with the plan's, pair by pair. type: of what attention read, which
/// `embedding` holds; with bfloat16 the plain 16-bit computation says what error is allowed. Uses
/// OpenMP.
SceneCheck check_scene(const Scene& scene, const SceneResults& results, const Embedding& embedding,
                       DType type);

}  // namespace magi::cli
