// SPDX-License-Identifier: Apache-2.0
#include "runtime/prepared_attends.hpp"

#include <cmath>

namespace magi {
namespace {

/// Prepares each attention call that has rows, once for those that are alike.
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
                         const comm::PeerExchanger* peers)
    : steps_(steps),
      backend_(backend),
      device_(device),
      exchange_sms_(exchange_sms),
      peers_(peers),
      takes_in_flight_(peers != nullptr && backend.takes_in_flight_keys() && steps.is_arrival()) {}

InFlightKeys AttendCache::in_flight_keys(std::int32_t own_rows) const {
  const AttendCall& call = steps_.attends.front();
  const comm::RowTable& table = steps_.rows_of_keys(call).filling;
  const comm::ArrivalShape shape = peers_->arrival_shape(table, call.attend.heads.size());
  InFlightKeys coming{.num_sources = shape.num_sources,
                      .num_sections = shape.num_sections,
                      .early_sources = 1U << shape.early_source,
                      .own_rows = own_rows};
  const PlanConfig& config = steps_.plan.config;
  std::int64_t remote_rows = 0;
  for (const comm::NeededPart& part : peers_->needed_parts(table)) {
    remote_rows += part.wire_row < 0 ? 0 : part.num_rows;
    if (part.row < own_rows) continue;
    coming.parts.push_back({{part.row, part.row + part.num_rows}, part.source});
  }
  const double bytes = static_cast<double>(remote_rows) * call.attend.heads.size() *
                       (config.head_dim_qk + config.head_dim_v) * config.element_bytes;
  const double seconds =
      config.cost.seconds_per_launch + bytes / shape.num_sections / config.cost.bytes_per_second;
  coming.expected_ns = std::llround(seconds * 1e9);
  return coming;
}

const PreparedAttends<PreparedForward>& AttendCache::forward(DType type) {
  const auto known = forwards_.find(type);
  if (known != forwards_.end()) return known->second;
  const auto prepare = [&](const AttendCall& call) {
    const auto [q, k, v] = shapes_of(call, type);
    const ForwardArgs args{.q = q, .k = k, .v = v, .slices = call.slices};
    const ForwardTuning tuning{.sm_margin = call.is_beside_exchange ? exchange_sms_ : 0};
    if (!takes_in_flight_) return backend_.prepare_forward(args, tuning);
    return backend_.prepare_in_flight_forward(args, tuning,
                                              in_flight_keys(steps_.rows_of_keys(call).own.end));
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
    if (!takes_in_flight_) return backend_.prepare_backward(args, tuning);
    // What prepares the backward takes longer than the keys do: waiting in its items costs more.
    InFlightKeys coming = in_flight_keys(0);
    coming.is_awaited = true;
    return backend_.prepare_in_flight_backward(args, tuning, coming);
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
