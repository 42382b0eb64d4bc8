// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/step_call.hpp"

// The arrival pass: plans whose one attention call waits for keys of others
// (RankSteps::is_arrival), over ranks that write each other's memory. Attention starts while its
// keys come, and its partial gradients go straight to their owners. Both passes read from top to
// bottom in the order of the stream. The calls are as those of the walk (walk/walk.hpp).
namespace magi::arrival {

void run_forward(StepCall& call);
void run_backward(StepCall& call);

}  // namespace magi::arrival
