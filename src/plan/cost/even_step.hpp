// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "magi/plan.hpp"

namespace magi::planner {

/// Seconds of a forward and a backward in which all ranks attend to equally many pairs, in one call
/// each, and wait for nothing. No plan of the mask is predicted to be faster.
inline double even_step_seconds(const Mask& mask, const PlanConfig& config) {
  const double pairs = static_cast<double>(area(mask)) / config.num_ranks;
  const double flops = 2.0 * config.num_heads_q * pairs;
  const double forward_dims = config.head_dim_qk + config.head_dim_v;
  const double backward_dims = 3.0 * config.head_dim_qk + 2.0 * config.head_dim_v;
  return flops * forward_dims / config.cost.flops_per_second +
         flops * backward_dims / config.cost.backward_flops_per_second +
         2 * config.cost.seconds_per_launch;
}

/// The seconds of a step that another choice of the work that travels could gain at most; 0 where
/// they are less than a fifth of the step or 100 us, which is not worth a search.
inline double possible_gain(const Plan& plan) {
  constexpr double kLeastShare = 0.2;
  constexpr double kLeastSeconds = 1e-4;
  const double step = plan.report.forward_seconds + plan.report.backward_seconds;
  const double gain = step - even_step_seconds(plan.mask, plan.config);
  return gain >= kLeastShare * step && gain >= kLeastSeconds ? gain : 0.0;
}

}  // namespace magi::planner
