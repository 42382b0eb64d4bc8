// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "comm/nvlink/peer_kernels.hpp"
#include "comm/rows/row_memory.hpp"

namespace magi::comm {

/// Does what launch_round_sums (device_rounding.hpp) does, after the partials of `arrival`, which
/// each block awaits itself. Returns false, and enqueues nothing, if that takes more blocks than
/// may wait for peers. Rows whose partials do not arrive become NaN.
bool launch_round_arriving(const Partials& partials, const PeerView& view,
                           const RowArrival& arrival, cudaStream_t stream);

}  // namespace magi::comm
