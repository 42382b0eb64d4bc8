// SPDX-License-Identifier: Apache-2.0
#include "verify/checks.hpp"

#include <algorithm>
#include <exception>

#include "reference/dense_attention.hpp"

namespace magi::cli {
namespace {

reference::DenseInput dense_input(const VerifyCase& verify_case, const CaseData& data) {
  const PlanConfig& config = verify_case.config;
  return {.rows_q = verify_case.mask.rows_q,
          .rows_k = verify_case.mask.rows_k,
          .heads_q = config.num_heads_q,
          .heads_kv = config.num_heads_kv,
          .dim_qk = config.head_dim_qk,
          .dim_v = config.head_dim_v,
          .q = data.q,
          .k = data.k,
          .v = data.v,
          .sink = data.sink,
          .num_sinks = verify_case.num_sinks,
          .params = verify_case.params};
}

void append(Findings& findings, const Findings& more, const char* stage) {
  for (const std::string& finding : more) findings.push_back(std::string(stage) + ": " + finding);
}

Findings verify_throwing(const VerifyCase& verify_case) {
  Findings findings;
  append(findings, check_mask(verify_case.mask), "mask");
  const Plan plan = make_plan(verify_case.mask, verify_case.config);
  append(findings, check_planning(verify_case, plan), "plan");
  // A plan known to be wrong may not be run: its rows may lie outside their buffers.
  if (!findings.empty()) return findings;
  const CaseData data = make_data(verify_case);
  const CaseResults results = run_case(verify_case, plan, data);
  append(findings, check_bytes(plan, results), "bytes");
  append(findings, check_results(verify_case, data, results, reference_results(verify_case, data)),
         "attention");
  return findings;
}

}  // namespace

Findings check_planning(const VerifyCase& verify_case, const Plan& plan) {
  Findings findings = check_plan(plan);
  if (make_plan(verify_case.mask, verify_case.config) != plan) {
    findings.push_back("a second call makes another plan");
  }
  if (plan_from_json(plan_to_json(plan)) != plan) findings.push_back("the plan's JSON differs");
  return findings;
}

CaseResults reference_results(const VerifyCase& verify_case, const CaseData& data) {
  const reference::DenseInput input = dense_input(verify_case, data);
  const reference::RowCounts counts = reference::counts_of(verify_case.mask);
  const reference::DenseOutput output = reference::dense_forward(input, counts);
  reference::DenseGradients gradients =
      reference::dense_backward(input, counts, output, data.dout, data.dlse);
  return {.out = output.out,
          .lse = output.lse,
          .max_logits = output.max_logits,
          .dq = std::move(gradients.dq),
          .dk = std::move(gradients.dk),
          .dv = std::move(gradients.dv),
          .dsink = std::move(gradients.dsink),
          .forward_bytes = {},
          .backward_bytes = {}};
}

Findings check_results(const VerifyCase& verify_case, const CaseData& data,
                       const CaseResults& results, const CaseResults& truth) {
  Findings findings;
  const reference::DenseInput input = dense_input(verify_case, data);
  const auto noise_of = [&](std::span<const double> factors) {
    return reference::cancelled_noise(input, data.dout, factors, verify_case.dtype);
  };
  const auto judge = [&](const char* name, const std::vector<double>& got,
                         const std::vector<double>& expected, double noise = 0.0) {
    reference::Decision decision = reference::judge_exact(got, expected, verify_case.dtype);
    decision.allowed += noise;
    if (!decision.holds()) findings.push_back(std::string(name) + " " + decision.text());
  };
  judge("out", results.out, truth.out);
  judge("lse", results.lse, truth.lse);
  judge("max_logits", results.max_logits, truth.max_logits);
  judge("dQ", results.dq, truth.dq, noise_of(data.k));
  judge("dK", results.dk, truth.dk, noise_of(data.q));
  judge("dV", results.dv, truth.dv);
  judge("dsink", results.dsink, truth.dsink);
  return findings;
}

Findings check_bytes(const Plan& plan, const CaseResults& results) {
  Findings findings;
  const auto is_of_queries = [](const Exchange& exchange) {
    return space_of(exchange.role) == Space::Queries;
  };
  if (std::ranges::any_of(plan.exchanges, is_of_queries)) return findings;
  const auto ranks = static_cast<std::size_t>(plan.config.num_ranks);
  for (std::size_t src = 0; src < ranks; ++src) {
    for (std::size_t dst = 0; dst < ranks; ++dst) {
      const std::int64_t cast = plan.report.pair_bytes[src * ranks + dst];
      // Backward casts again, and returns partial gradients of the rows that came.
      const std::int64_t back = cast + plan.report.pair_bytes[dst * ranks + src];
      const std::int64_t forward = results.forward_bytes[src * ranks + dst];
      const std::int64_t backward = results.backward_bytes[src * ranks + dst];
      if (forward == cast && backward == back) continue;
      findings.push_back("rank " + std::to_string(src) + " sent rank " + std::to_string(dst) + " " +
                         std::to_string(forward) + " bytes forward and " +
                         std::to_string(backward) + " backward, planned " + std::to_string(cast) +
                         " and " + std::to_string(back));
    }
  }
  return findings;
}

Findings verify(const VerifyCase& verify_case) {
  try {
    return verify_throwing(verify_case);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    return {std::string("exception: ") + error.what()};
  }
}

}  // namespace magi::cli
