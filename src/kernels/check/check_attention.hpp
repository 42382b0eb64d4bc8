// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/check/check_limits.hpp"
#include "magi/key_lists.hpp"

// Checks of calls, the same before every backend. Each throws InvalidArgument naming the tensor or
// value, what was seen and what is allowed.
namespace magi {

/// Checks shapes and types of q, k, v and dout, whose data may be missing.
void check_problem(const AttentionLimits& limits, const ForwardArgs& args);
void check_problem(const AttentionLimits& limits, const BackwardArgs& args);

/// Checks everything but the slices: the tensors fit each other, lie on `device` and are, with the
/// options, what a backend of these limits takes.
void check_attention(const AttentionLimits& limits, const ForwardArgs& args, std::int32_t device);
void check_attention(const AttentionLimits& limits, const BackwardArgs& args, std::int32_t device);

/// Checks lists for q and k of a checked call.
void check_lists(const KeyLists& lists, const TensorView& q, const TensorView& k);

}  // namespace magi
