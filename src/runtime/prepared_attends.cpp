// SPDX-License-Identifier: Apache-2.0
#include "runtime/prepared_attends.hpp"

#include <cmath>

namespace magi {
namespace {

/// Prepares each attend that has rows, once for those that are alike.
template <typename Prepared, typename Prepare>
PreparedAttends<Prepared> prepare_all(const RankSteps& steps, const Prepare& prepare) {
  PreparedAttends<Prepared> prepared;
  for (const AttendCall& call : steps.attends) {
    if (call.q_rows.empty()) {
      prepared.push_back(nullptr);
    } else if (call.alike < prepared.size()) {
      prepared.push_back(prepared[call.alike]);
    } else {
      prepared.push_back(prepare(call));
    }
  }
  return prepared;
}

}  // namespace

AttendCache::AttendCache(const RankSteps& steps, const AttentionBackend& backend,
                         std::int32_t device, std::int32_t exchange_sms,
                         const comm::RowExchanger& exchanger)
    : steps_(steps),
      backend_(backend),
      device_(device),
      exchange_sms_(exchange_sms),
      exchanger_(exchanger),
      takes_coming_(backend.takes_coming_keys() && steps.is_single_attend() &&
                    exchanger.tells_arrivals()) {}

std::int32_t AttendCache::own_rows_of(const AttendCall& call) const {
  if (!takes_coming_ || call.keys < 0) return 0;
  const Range own = steps_.rows_of(steps_.plan.exchanges[static_cast<std::size_t>(call.keys)]).own;
  return own.begin == 0 ? own.end : 0;
}

std::vector<comm::NeededPart> AttendCache::parts_of(const AttendCall& call) const {
  if (!takes_coming_ || call.keys < 0) return {};
  return exchanger_.needed_parts(
      steps_.rows_of(steps_.plan.exchanges[static_cast<std::size_t>(call.keys)]).filling);
}

ComingKeys AttendCache::coming_keys(const AttendCall& call, std::int32_t own_rows) const {
  ComingKeys coming;
  if (!takes_coming_ || call.keys < 0) return coming;
  const auto parts = parts_of(call);
  coming.own_rows = own_rows;
  const Exchange& keys = steps_.plan.exchanges[static_cast<std::size_t>(call.keys)];
  const comm::ArrivalShape shape =
      exchanger_.arrival_shape(steps_.rows_of(keys).filling, call.attend.heads.size());
  coming.num_sources = shape.num_sources;
  coming.num_sections = shape.num_sections;
  coming.early_sources = 1U << shape.early_source;
  const PlanConfig& config = steps_.plan.config;
  std::int64_t remote_rows = 0;
  for (const comm::NeededPart& part : parts) remote_rows += part.wire_row < 0 ? 0 : part.num_rows;
  const double bytes = static_cast<double>(remote_rows) * call.attend.heads.size() *
                       (config.head_dim_qk + config.head_dim_v) * config.element_bytes;
  const double seconds =
      config.cost.seconds_per_launch + bytes / shape.num_sections / config.cost.bytes_per_second;
  coming.expected_ns = std::llround(seconds * 1e9);
  for (const comm::NeededPart& part : parts) {
    if (part.row < own_rows) continue;
    coming.parts.push_back({{part.row, part.row + part.num_rows}, part.source});
  }
  return coming;
}

const PreparedAttends<PreparedForward>& AttendCache::forward(DType type) {
  const auto known = forwards_.find(type);
  if (known != forwards_.end()) return known->second;
  const auto prepare = [&](const AttendCall& call) {
    const auto [q, k, v] = shapes_of(call, type);
    const ForwardArgs args{.q = q, .k = k, .v = v, .slices = call.slices};
    const ForwardTuning tuning{.sm_margin = call.is_beside_exchange ? exchange_sms_ : 0};
    const ComingKeys coming = coming_keys(call, own_rows_of(call));
    return coming.empty() ? backend_.prepare_forward(args, tuning)
                          : backend_.prepare_coming_forward(args, tuning, coming);
  };
  return forwards_[type] = prepare_all<PreparedForward>(steps_, prepare);
}

const PreparedAttends<PreparedBackward>& AttendCache::backward(const BackwardKind& kind) {
  const auto known = backwards_.find(kind);
  if (known != backwards_.end()) return known->second;
  const auto prepare = [&](const AttendCall& call) {
    const BackwardTuning tuning{.sm_margin = call.is_beside_in_backward ? exchange_sms_ : 0,
                                .is_deterministic = !kind.is_fast};
    const auto [q, k, v] = shapes_of(call, kind.type);
    BackwardArgs args{.q = q, .k = k, .v = v, .slices = call.slices};
    args.dout = without_data(kind.dout_type, call.q_rows.size(), call.q_heads.size(),
                             steps_.plan.config.head_dim_v);
    // What prepares the backward takes longer than the keys do: waiting in its items costs more.
    ComingKeys coming = coming_keys(call, 0);
    coming.is_awaited = true;
    return coming.empty() ? backend_.prepare_backward(args, tuning)
                          : backend_.prepare_coming_backward(args, tuning, coming);
  };
  return backwards_[kind] = prepare_all<PreparedBackward>(steps_, prepare);
}

std::size_t AttendCache::size_bytes() const {
  std::int64_t total = 0;
  const auto add_different = [&](const auto& attends) {
    for (std::size_t a = 0; a < attends.size(); ++a) {
      if (attends[a] != nullptr && steps_.attends[a].alike == a) total += attends[a]->size_bytes();
    }
  };
  for (const auto& [type, attends] : forwards_) add_different(attends);
  for (const auto& [kind, attends] : backwards_) add_different(attends);
  return static_cast<std::size_t>(total);
}

TensorView AttendCache::without_data(DType dtype, std::int64_t rows, std::int64_t heads,
                                     std::int64_t dim) const {
  TensorView tensor = contiguous_view(nullptr, dtype, {rows, heads, dim});
  tensor.device = device_;
  return tensor;
}

std::array<TensorView, 3> AttendCache::shapes_of(const AttendCall& call, DType dtype) const {
  const PlanConfig& config = steps_.plan.config;
  const std::int64_t rows_k = call.k_rows.size();
  const std::int64_t heads = call.attend.heads.size();
  return {without_data(dtype, call.q_rows.size(), call.q_heads.size(), config.head_dim_qk),
          without_data(dtype, rows_k, heads, config.head_dim_qk),
          without_data(dtype, rows_k, heads, config.head_dim_v)};
}

}  // namespace magi
