// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cpu/micro_kernel_table.hpp"
#include "magi/key_lists.hpp"

namespace magi::cpu {

/// attention_forward_cpu and attention_backward_cpu on a given instruction set.
void attention_forward(const ForwardArgs& args, Isa isa);
void attention_backward(const BackwardArgs& args, Isa isa);
void attention_forward(const ForwardArgs& args, const KeyLists& lists, Isa isa);
void attention_backward(const BackwardArgs& args, const KeyLists& lists, Isa isa);

/// Sets how many threads OpenMP gives to calls from this thread, for tests and benches; returns the
/// number before.
std::int32_t set_num_threads(std::int32_t num_threads);

}  // namespace magi::cpu
