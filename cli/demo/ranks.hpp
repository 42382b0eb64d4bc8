// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "demo/embedding.hpp"
#include "demo/results.hpp"
#include "demo/scenes.hpp"
#include "magi/comm.hpp"

namespace magi::cli {

/// The inputs of every rank.
struct DemoInput {
  const Corpus& corpus;
  const Embedding& embedding;
  const std::vector<Scene>& scenes;
  DType type = DType::Float32;  ///< of what attention reads: float32 or bfloat16, on GPUs bfloat16
  bool is_on_gpus = false;      ///< rank r on GPU r
  std::chrono::seconds deadline{100};
};

/// One rank's part of all masks: takes its shard, runs forward and backward, and gathers the
/// results over `base`, which rank 0 writes to `results`. Collective. Rank 0 reports progress on
/// standard error.
void run_demo_rank(const DemoInput& input, const std::shared_ptr<Communicator>& base,
                   SharedResults& results);

}  // namespace magi::cli
