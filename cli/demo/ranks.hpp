// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "demo/embedding.hpp"
#include "demo/results.hpp"
#include "demo/scenes.hpp"
#include "magi/comm.hpp"

namespace magi::cli {

/// What every rank starts from.
struct DemoInput {
  const Corpus& corpus;
  const Embedding& embedding;
  const std::vector<Scene>& scenes;
};

/// One rank's part of all masks: takes its shard, runs forward and backward, and gathers the
/// results, which rank 0 writes to `results`. Collective. Rank 0 reports progress on standard
/// error.
void run_demo_rank(const DemoInput& input, Communicator& communicator, SharedResults& results);

}  // namespace magi::cli
