// SPDX-License-Identifier: Apache-2.0
#include "runtime/prepared_attends.hpp"

#include <cmath>
#include <string>

#include "kernels/check/check_limits.hpp"

namespace magi {
namespace {

/// Finds what is prepared for a kind of calls, or prepares each attention call that has rows, once
/// for those that are alike, and counts its bytes.
template <typename Kind, typename Prepared, typename Prepare>
const PreparedAttends<Prepared>& find_or_prepare(std::map<Kind, PreparedAttends<Prepared>>& known,
                                                 const Kind& kind, const RankSteps& steps,
                                                 std::size_t& held_bytes, const Prepare& prepare) {
  const auto found = known.find(kind);
  if (found != known.end()) return found->second;
  PreparedAttends<Prepared> prepared;
  std::int64_t size_bytes = 0;
  for (const AttendCall& call : steps.attends) {
    if (call.q_rows.empty()) {
      prepared.push_back(nullptr);
    } else if (call.alike < prepared.size()) {
      prepared.push_back(prepared[call.alike]);
    } else {
      prepared.push_back(prepare(call));
      size_bytes += prepared.back()->size_bytes();
    }
  }
  held_bytes += static_cast<std::size_t>(size_bytes);
  return known[kind] = std::move(prepared);
}

}  // namespace

AttendCache::AttendCache(const RankSteps& steps, const AttentionOptions& options,
                         std::int32_t device, const comm::PeerExchanger* peers)
    : steps_(steps),
      backend_(find_backend(options.backend, device)),
      device_(device),
      exchange_sms_(options.exchange_sms),
      peers_(peers),
      takes_in_flight_(peers != nullptr && backend_->takes_in_flight_keys() && steps.is_arrival()) {
  const PlanConfig& config = steps.plan.config;
  const std::string where = device == kCpuDevice ? "" : "on a GPU ";
  const AttentionLimits& limits = backend_->limits();
  check_head_dim(limits.dim_qk, "plan.config.head_dim_qk", config.head_dim_qk, where);
  check_head_dim(limits.dim_v, "plan.config.head_dim_v", config.head_dim_v, where);
}

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

TensorView AttendCache::without_data(DType dtype, Range rows, Range heads, std::int32_t dim) const {
  return contiguous_view(nullptr, dtype, {rows.size(), heads.size(), dim}, device_);
}

template <typename Args>
Args AttendCache::shapes_of(const AttendCall& call, DType dtype) const {
  const PlanConfig& config = steps_.plan.config;
  Args args;
  args.q = without_data(dtype, call.q_rows, call.q_heads, config.head_dim_qk);
  args.k = without_data(dtype, call.k_rows, call.attend.heads, config.head_dim_qk);
  args.v = without_data(dtype, call.k_rows, call.attend.heads, config.head_dim_v);
  args.slices = call.slices;
  return args;
}

const PreparedAttends<PreparedForward>& AttendCache::forward(const PassArgs& args) {
  const DType type = args.inputs.q.dtype;
  return find_or_prepare(forwards_, type, steps_, held_bytes_, [&](const AttendCall& call) {
    const auto shapes = shapes_of<ForwardArgs>(call, type);
    const ForwardTuning tuning{.sm_margin = call.is_beside[0] ? exchange_sms_ : 0};
    if (!takes_in_flight_) return backend_->prepare_forward(shapes, tuning);
    return backend_->prepare_in_flight_forward(shapes, tuning,
                                               in_flight_keys(steps_.rows_of_keys(call).own.end));
  });
}

const PreparedAttends<PreparedBackward>& AttendCache::backward(const PassArgs& args) {
  const std::tuple kind(args.inputs.q.dtype, args.output_gradients.dout.dtype,
                        args.inputs.is_fast_backward);
  return find_or_prepare(backwards_, kind, steps_, held_bytes_, [&](const AttendCall& call) {
    const auto& [type, dout_type, is_fast] = kind;
    const BackwardTuning tuning{.sm_margin = call.is_beside[1] ? exchange_sms_ : 0,
                                .is_deterministic = !is_fast};
    auto shapes = shapes_of<BackwardArgs>(call, type);
    shapes.dout = without_data(dout_type, call.q_rows, call.q_heads, steps_.plan.config.head_dim_v);
    if (!takes_in_flight_) return backend_->prepare_backward(shapes, tuning);
    // What prepares the backward takes longer than the keys do: waiting in its items costs more.
    InFlightKeys coming = in_flight_keys(0);
    coming.is_awaited = true;
    return backend_->prepare_in_flight_backward(shapes, tuning, coming);
  });
}

}  // namespace magi
