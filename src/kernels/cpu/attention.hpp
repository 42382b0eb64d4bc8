// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cpu/micro_kernel_table.hpp"
#include "magi/key_lists.hpp"

// Attention on the CPU: the calls of magi/attention.hpp and magi/key_lists.hpp. A call is checked
// and falls into items, each of which owns the results that it writes, so that these do not depend
// on the number of threads. Begin with forward.cpp; the backward is two such passes (backward.hpp).
//
//   check_args            what a call may be; its sizes
//   run_items, threads    how rows fall into items, and items to threads
//   tile_records, strips  what slices leave on a tile of rows; a few rows against a block of keys
//   listed_keys           the same under lists of keys
//   rows, pack            rows of any type to and from the type that is computed in
//   micro_kernel*, simd   the inner loops, one text compiled once per instruction set (isa)
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
