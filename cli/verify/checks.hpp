// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "reference/error_rule.hpp"
#include "verify/case.hpp"

// The checkers. Each returns what it finds wrong, one sentence a finding, and nothing when all is
// well. They take what they judge as arguments, so that a test can hand them wrong things.
namespace magi::cli {

using Findings = std::vector<std::string>;

/// `expanded` [rows_q, rows_k] against the definition of a slice, pair by pair.
Findings check_expansion(const Mask& mask, std::span<const std::uint16_t> expanded);

/// `pairs` against the count of the definition.
Findings check_area(const Mask& mask, std::int64_t pairs);

/// The library's own answers for a mask, through the two above, and its JSON.
Findings check_mask(const Mask& mask);

/// The plan of a case: sound (check_plan), the same when made again, and through JSON.
Findings check_planning(const VerifyCase& verify_case, const Plan& plan);

/// Arrays of a case in global row order, row-major.
struct CaseData {
  std::vector<double> q, k, v, dout;
  std::vector<double> sink;  ///< empty, or as params.sink_layout says
  std::vector<double> dlse;  ///< empty, or [rows_q, heads_q]
};
CaseData make_data(const VerifyCase& verify_case);

/// The results of a run, in global row order.
struct CaseResults {
  std::vector<double> out, lse, max_logits, dq, dk, dv, dsink;
  std::vector<std::int64_t> forward_bytes;   ///< [ranks, ranks] sent, row = source
  std::vector<std::int64_t> backward_bytes;  ///< [ranks, ranks]
};

/// Runs the case on threads as ranks: dispatch, forward, backward, undispatch.
CaseResults run_case(const VerifyCase& verify_case, const Plan& plan, const CaseData& data);

/// Dense float64 attention of the case.
CaseResults reference_results(const VerifyCase& verify_case, const CaseData& data);

/// Every array of a run on `data` against dense float64 attention by the error rule.
Findings check_results(const VerifyCase& verify_case, const CaseData& data,
                       const CaseResults& results, const CaseResults& truth);

/// Counted bytes against the plan's, pair by pair, where keys alone travel: lse goes with queries
/// and their results, and plans do not count it.
Findings check_bytes(const Plan& plan, const CaseResults& results);

/// All of the above. Exceptions of the library become findings: a drawn case is valid.
Findings verify(const VerifyCase& verify_case);

/// A smaller case that still fails, by leaving out slices, ranks and features while it does; at
/// most `most_tries` runs.
VerifyCase shrink_case(const VerifyCase& failing, int most_tries);

}  // namespace magi::cli
