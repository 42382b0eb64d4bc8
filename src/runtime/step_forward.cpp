// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "runtime/step_call.hpp"

namespace magi {
namespace {

/// Each attend is merged into what is there. The first of the own queries brings the sink in.
ForwardArgs make_args(StepCall& call, const AttendCall& attend, const AttentionInputs& inputs,
                      const TensorView& max_logits) {
  const Attend& what = attend.attend;
  const auto part = [&](Role role) {
    return rows_of(call.tensors(role, attend.queries, what.heads), attend.q_rows);
  };
  const TensorGroup keys = call.tensors(Role::KeysValues, attend.keys, what.heads);
  const TensorGroup results = part(Role::Results);
  ForwardArgs args{.q = part(Role::Queries)[0],
                   .k = keys[0],
                   .v = keys[1],
                   .slices = {},
                   .out = results[0],
                   .lse = results[1],
                   .is_merging = what.is_merging,
                   .params = inputs.params};
  if (attend.queries < 0 && !what.is_merging) args.sink = inputs.sink;
  if (!max_logits.empty()) {
    const Range heads = call.steps.q_heads(what.heads);
    args.max_logits = max_logits.slice(0, heads.begin, heads.end);
  }
  return args;
}

}  // namespace

void run_forward(StepCall& call, const PreparedAttends<PreparedForward>& prepared,
                 const AttentionInputs& inputs, const AttentionResult& result) {
  const TensorView out = call.sum_for(result.out, call.steps.num_results > 1);
  call.set_own(Role::KeysValues, {inputs.k, inputs.v});
  call.set_own(Role::Queries, {inputs.q});
  call.set_own(Role::Results, {out, result.lse});
  const DeviceWorkspace workspace = call.workspace_for(prepared);
  if (!result.max_logits.empty() && call.steps.rows_q == 0) {
    call.memory.fill(result.max_logits, -std::numeric_limits<double>::infinity());
  }
  for (const Step& step : call.pass()) {
    call.await_before(step);
    if (step.kind == StepKind::Exchange) {
      call.exchange(step);
      continue;
    }
    const auto index = static_cast<std::size_t>(step.index);
    if (prepared[index] == nullptr) continue;
    prepared[index]->run(make_args(call, call.steps.attends[index], inputs, result.max_logits),
                         workspace, call.stream);
  }
  call.await_all();
  call.store(out, result.out);
}

}  // namespace magi
