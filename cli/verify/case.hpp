// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "magi/attention.hpp"
#include "magi/plan.hpp"
#include "mask/random_mask.hpp"

namespace magi::cli {

/// One attention call to verify: everything that its outcome depends on.
struct VerifyCase {
  Mask mask;
  PlanConfig config;
  DType dtype = DType::Float64;  ///< float64 or float32
  AttentionParams params;
  std::int32_t num_sinks = 0;
  bool has_dlse = false;        ///< a gradient through lse too
  std::uint64_t data_seed = 0;  ///< of q, k, v, sink, dout, dlse
  friend bool operator==(const VerifyCase&, const VerifyCase&) = default;
};

/// Draws a case: most are small, some of a few hundred rows, few of up to 2,048. All slice types,
/// overlaps, empty and one-row ranges, keys of another length than queries, one to eight ranks, all
/// placements, ways and searches of sharing out work, both precisions, grouped heads, sinks,
/// softcap, overlap degrees.
VerifyCase random_case(RandomStream& random);

/// One JSON object; case_from_json gives the same case back and throws InvalidArgument for anything
/// that is not one.
std::string case_to_json(const VerifyCase& verify_case);
VerifyCase case_from_json(std::string_view text);

}  // namespace magi::cli
