// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <string>
#include <vector>

#include "magi/plan.hpp"
#include "plan/check_figures.hpp"
#include "plan/check_pairs.hpp"
#include "plan/check_steps.hpp"
#include "plan/check_structure.hpp"

namespace magi {

using namespace planner;

namespace {

/// `num_shares`: of the heads, where the plan is one of flat rows.
std::vector<std::string> check_tables(const Plan& plan, std::int32_t num_shares, bool has_digest) {
  Problems problems;
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) check_attend_slices(plan, r, problems);
  const RowMaps rows(plan);
  check_received(plan, rows, problems);
  check_pairs(plan, rows, problems);
  check_figures(plan, num_shares, problems);
  if (!has_digest) problems.add("the digest is not that of the tables");
  return problems.take();
}

}  // namespace

std::vector<std::string> check_plan(const Plan& plan) {
  std::vector<std::string> broken = check_structure(plan);
  if (!broken.empty()) return broken;
  const bool has_digest = plan_digest(plan) == plan.digest;
  return plan.num_head_shares == 1
             ? check_tables(plan, 1, has_digest)
             : check_tables(flat_plan(plan), plan.num_head_shares, has_digest);
}

}  // namespace magi
