// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cpu/micro_kernel_table.hpp"
#include "magi/attention.hpp"

namespace magi::cpu {

/// attention_forward_cpu and attention_backward_cpu on a given instruction set.
void attention_forward(const ForwardArgs& args, Isa isa);
void attention_backward(const BackwardArgs& args, Isa isa);

}  // namespace magi::cpu
