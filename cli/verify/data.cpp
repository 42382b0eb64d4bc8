// SPDX-License-Identifier: Apache-2.0
#include "verify/checks.hpp"

namespace magi::cli {
namespace {

/// Values between -1.5 and 1.5 that the case's type holds exactly.
std::vector<double> random_values(RandomStream& random, std::int64_t count, DType dtype) {
  std::vector<double> values(static_cast<std::size_t>(count));
  for (double& value : values) {
    value = 3.0 * (static_cast<double>(random() >> 11) * 0x1p-53 - 0.5);
    if (dtype == DType::Float32) value = static_cast<float>(value);
  }
  return values;
}

}  // namespace

CaseData make_data(const VerifyCase& verify_case) {
  const PlanConfig& config = verify_case.config;
  const std::int64_t rows_q = verify_case.mask.rows_q;
  const std::int64_t rows_k = verify_case.mask.rows_k;
  RandomStream random(verify_case.data_seed);
  const auto values = [&](std::int64_t count) {
    return random_values(random, count, verify_case.dtype);
  };
  CaseData data;
  data.q = values(rows_q * config.num_heads_q * config.head_dim_qk);
  data.k = values(rows_k * config.num_heads_kv * config.head_dim_qk);
  data.v = values(rows_k * config.num_heads_kv * config.head_dim_v);
  data.dout = values(rows_q * config.num_heads_q * config.head_dim_v);
  const bool is_per_row = verify_case.params.sink_layout == SinkLayout::RowSinkHead;
  data.sink =
      values(std::int64_t{verify_case.num_sinks} * config.num_heads_q * (is_per_row ? rows_q : 1));
  if (verify_case.has_dlse) data.dlse = values(rows_q * config.num_heads_q);
  return data;
}

}  // namespace magi::cli
