// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "runtime/step_call.hpp"

namespace magi {
namespace {

/// Where the attends of each query segment write their maxima, which the first overwrites: heads by
/// segment. One segment writes the result itself.
TensorView lend_maxima(StepCall& call, const TensorView& max_logits) {
  const auto num_segments = static_cast<std::int64_t>(call.steps.q_segments.size());
  if (max_logits.empty() || (num_segments == 1 && call.steps.rows_q > 0)) return max_logits;
  TensorView maxima = max_logits;
  if (num_segments > 1) {
    maxima = call.memory.lend(max_logits.dtype, {num_segments * max_logits.shape[0]});
  }
  call.fill(maxima, -std::numeric_limits<double>::infinity());
  return maxima;
}

/// Each attend is merged into what is there. The first of the own queries brings the sink in.
ForwardArgs make_args(StepCall& call, const AttendCall& attend, const AttentionInputs& inputs,
                      const TensorView& maxima) {
  const Attend& what = attend.attend;
  const TensorGroup keys = call.tensors(Role::KeysValues, attend);
  const TensorGroup results = call.tensors(Role::Results, attend);
  ForwardArgs args{.q = call.tensors(Role::Queries, attend)[0],
                   .k = keys[0],
                   .v = keys[1],
                   .slices = {},
                   .out = results[0],
                   .lse = results[1],
                   .is_merging = what.is_merging,
                   .params = inputs.params};
  if (attend.queries < 0 && !what.is_merging) {
    args.sink = sink_of(inputs.sink, call.steps, attend);
  }
  if (!maxima.empty()) {
    const std::int32_t num_heads = call.steps.plan.config.num_heads_q * call.steps.shares.count;
    const std::int32_t first = what.q_segment * num_heads;
    const Range heads = call.steps.all_q_heads(attend);
    args.max_logits = maxima.slice(0, first + heads.begin, first + heads.end);
  }
  return args;
}

/// Results of own queries that see no keys and no sink: those of all shares with the first one's.
void write_idle_results(StepCall& call, const AttendCall& attend, const TensorView& maxima) {
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  if (attend.share > 0) return;
  const TensorGroup results = call.tensors(Role::Results, -1, attend.attend.heads);
  call.fill(results[0], 0.0);
  call.fill(results[1], kNone);
  if (maxima.empty()) return;
  const std::int32_t num_heads = call.steps.plan.config.num_heads_q * call.steps.shares.count;
  call.fill(maxima.slice(0, 0, num_heads), kNone);
}

}  // namespace

void set_tensors(StepCall& call, const AttentionInputs& inputs, const AttentionResult& result) {
  call.set_own(Role::KeysValues, {inputs.k, inputs.v});
  call.set_own(Role::Queries, {inputs.q});
  call.set_own(Role::Results, {result.out, result.lse});
  call.set_options(inputs, !result.max_logits.empty(), false);
}

void run_forward(StepCall& call, const PreparedAttends<PreparedForward>& prepared,
                 const AttentionInputs& inputs, const TensorView& max_logits) {
  const TensorGroup results = call.own(Role::Results);  // out and lse
  const TensorView out =
      call.sum_for(results[0], call.steps.num_results > 1 && !call.is_whole(Role::Results));
  call.set_own(Role::Results, {out, results[1]});
  const TensorView maxima = lend_maxima(call, max_logits);
  const auto run = [&](const PreparedForward& attention, const AttendCall& attend,
                       const DeviceWorkspace& workspace) {
    if (attend.is_idle && inputs.sink.rank == 0) return write_idle_results(call, attend, maxima);
    const ForwardArgs args = make_args(call, attend, inputs, maxima);
    const auto arrivals = call.key_arrivals();
    if (arrivals) {
      call.guard_result(args.out);
      return attention.run_coming(args, workspace, *arrivals, call.stream);
    }
    attention.run(args, workspace, call.stream);
  };
  call.walk(prepared, run, [&](const Step& step) { call.exchange(step); });
  call.await_all();
  call.store(out, results[0]);
  if (call.steps.q_segments.size() > 1) comm::maximise_rows(maxima, max_logits, call.stream);
}

}  // namespace magi
