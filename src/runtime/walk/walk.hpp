// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/step_call.hpp"

// The walk: any plan over any exchanger of rows. Each step waits for the exchanges that it names.
// The calls are those of one pass, which have begun.
namespace magi::walk {

void run_forward(StepCall& call);
void run_backward(StepCall& call);

}  // namespace magi::walk
