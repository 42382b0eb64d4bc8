// SPDX-License-Identifier: Apache-2.0
#include "runtime/prepared_attends.hpp"

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

/// Bytes of the different ones among the prepared attends.
template <typename Prepared>
std::size_t held_bytes(const RankSteps& steps, const PreparedAttends<Prepared>& prepared) {
  std::int64_t total = 0;
  for (std::size_t a = 0; a < prepared.size(); ++a) {
    if (prepared[a] != nullptr && steps.attends[a].alike == a) total += prepared[a]->size_bytes();
  }
  return static_cast<std::size_t>(total);
}

}  // namespace

const PreparedAttends<PreparedForward>& AttendCache::forward(DType type) {
  for (const auto& known : forwards_) {
    if (known.kind == type) return known.attends;
  }
  const auto prepare = [&](const AttendCall& call) {
    const Shape shape = shape_of(call, type);
    const ForwardArgs args{.q = shape.q, .k = shape.k, .v = shape.v, .slices = call.slices};
    return backend_.prepare_forward(args,
                                    {.sm_margin = call.is_beside_exchange ? exchange_sms_ : 0});
  };
  return forwards_.emplace_back(type, prepare_all<PreparedForward>(steps_, prepare)).attends;
}

const PreparedAttends<PreparedBackward>& AttendCache::backward(const BackwardKind& kind) {
  for (const auto& known : backwards_) {
    if (known.kind == kind) return known.attends;
  }
  // Partial gradients are on their way as soon as an attend has ended, keys until all have come.
  const bool is_beside_exchange = !steps_.plan.exchanges.empty() && steps_.attends.size() > 1;
  const BackwardTuning tuning{.sm_margin = is_beside_exchange ? exchange_sms_ : 0,
                              .is_deterministic = !kind.is_fast};
  const auto prepare = [&](const AttendCall& call) {
    const Shape shape = shape_of(call, kind.type);
    BackwardArgs args{.q = shape.q, .k = shape.k, .v = shape.v, .slices = call.slices};
    args.dout = without_data(
        kind.dout_type, {call.q_rows.size(), call.q_heads.size(), steps_.plan.config.head_dim_v});
    return backend_.prepare_backward(args, tuning);
  };
  return backwards_.emplace_back(kind, prepare_all<PreparedBackward>(steps_, prepare)).attends;
}

std::size_t AttendCache::size_bytes() const {
  std::size_t total = 0;
  for (const auto& entry : forwards_) total += held_bytes(steps_, entry.attends);
  for (const auto& entry : backwards_) total += held_bytes(steps_, entry.attends);
  return total;
}

TensorView AttendCache::without_data(DType dtype, std::array<std::int64_t, 3> shape) const {
  TensorView tensor = contiguous_view(nullptr, dtype, {shape[0], shape[1], shape[2]});
  tensor.device = device_;
  return tensor;
}

AttendCache::Shape AttendCache::shape_of(const AttendCall& call, DType dtype) const {
  const PlanConfig& config = steps_.plan.config;
  const auto segment = static_cast<std::size_t>(call.attend.k_segment);
  const std::int64_t rows_k = steps_.own.k.segments[segment].num_rows;
  const std::int64_t heads = call.attend.heads.size();
  return {without_data(dtype, {call.q_rows.size(), call.q_heads.size(), config.head_dim_qk}),
          without_data(dtype, {rows_k, heads, config.head_dim_qk}),
          without_data(dtype, {rows_k, heads, config.head_dim_v})};
}

}  // namespace magi
