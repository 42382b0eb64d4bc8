// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "comm/nvlink/peer_exchanger.hpp"
#include "runtime/step_call.hpp"

// The arrival pass: plans whose one attention call waits for keys of others
// (RankSteps::is_arrival), over ranks that write each other's memory. Attention starts while its
// keys come, and its partial gradients go straight to their owners. forward.cpp and backward.cpp
// read from top to bottom in the order in which work is enqueued. The calls are as those of the
// walk (walk/walk.hpp).
namespace magi::arrival {

void run_forward(StepCall& call);
void run_backward(StepCall& call);

/// The steps of both passes by their place; the forward has the first two.
enum Place : std::uint8_t { kKeys, kAttend, kGradients };

/// Starts the exchange of the keys, which leave when they are pushed, and describes them to
/// attention: without flags where the push waits for them itself.
std::pair<comm::PendingKeys*, KeyArrivals> start_keys(StepCall& call, const comm::KeyPush& push);

}  // namespace magi::arrival
