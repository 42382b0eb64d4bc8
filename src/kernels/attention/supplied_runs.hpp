// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "kernels/attention/backend.hpp"
#include "kernels/attention/checks.hpp"
#include "kernels/attention/supplied_table.hpp"

// Runs of a supplied backend, which computes plain attention. What a call asks beyond that (an
// earlier result to merge into, gradients to add to, other types) the library does around it.
namespace magi {

std::shared_ptr<const PreparedForward> supplied_forward(
    const AttentionLimits& limits, const AttentionProblem& problem,
    std::unique_ptr<const SuppliedHandle> handle);
std::shared_ptr<const PreparedBackward> supplied_backward(
    const AttentionLimits& limits, const AttentionProblem& problem,
    std::unique_ptr<const SuppliedHandle> handle);

}  // namespace magi
