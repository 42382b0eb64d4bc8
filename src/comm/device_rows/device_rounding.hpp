// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "comm/rows/row_memory.hpp"

namespace magi::comm {

/// Whether sums of float32 rows can go into `partials.rounded`: 16-bit tensors whose rows, like
/// those of the sums and of the wire, consist of whole groups of four elements that lie side by
/// side. Partials are float32 or of the results' type.
bool can_round_sums(const Partials& partials);

/// rounded[t][row] = to[t][row] + the row's partials, rounded once: for all rows, or where `to` has
/// only those that something is added to, for these. Enqueued.
void launch_round_sums(const Partials& partials, cudaStream_t stream);

}  // namespace magi::comm
