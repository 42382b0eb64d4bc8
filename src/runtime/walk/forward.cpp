// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "runtime/tensors/elements.hpp"
#include "runtime/walk/walk.hpp"

namespace magi::walk {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();  ///< logit of no key

/// Lends where the attention calls of each query segment write their maxima, which the first
/// overwrites: heads by segment. One segment writes the result itself.
TensorView lend_maxima(StepCall& call, const TensorView& max_logits) {
  const auto num_segments = static_cast<std::int64_t>(call.steps.q_segments.size());
  if (max_logits.empty() || (num_segments == 1 && call.steps.rows_q > 0)) return max_logits;
  TensorView maxima = max_logits;
  if (num_segments > 1) {
    maxima = call.memory.lend(max_logits.dtype, {num_segments * max_logits.shape[0]});
  }
  fill_elements(maxima, kNone, call.stream);
  return maxima;
}

/// Results of own queries that see no keys and no sink: those of all shares with the first one's.
void write_idle_results(StepCall& call, const AttendCall& attend, const TensorView& maxima) {
  if (attend.share > 0) return;
  const TensorGroup results = call.tensors(Role::Results, -1, attend.attend.heads);
  clear_elements(results[0], call.stream);
  fill_elements(results[1], kNone, call.stream);
  if (maxima.empty()) return;
  fill_elements(maxima.slice(0, 0, call.args.result.max_logits.shape[0]), kNone, call.stream);
}

}  // namespace

void run_forward(StepCall& call) {
  const TensorView& max_logits = call.args.result.max_logits;
  const TensorGroup results = call.own(Role::Results);  // out and lse
  const TensorView out =
      call.sum_for(results[0], call.steps.num_results > 1 && !call.is_whole(Role::Results));
  call.set_own(Role::Results, {out, results[1]});
  const TensorView maxima = lend_maxima(call, max_logits);
  const auto run = [&](const PreparedForward& attention, const AttendCall& attend,
                       const DeviceWorkspace& workspace) {
    if (attend.is_idle && !is_given(call.args.inputs.sink))
      return write_idle_results(call, attend, maxima);
    attention.run(forward_args(call, attend, maxima), workspace, call.stream);
  };
  walk_steps(call, call.memory.attends().forward(call.args), run,
             [&](const Step& step) { call.exchange(step); });
  call.await_all();
  call.store(out, results[0]);
  if (call.steps.q_segments.size() > 1) comm::maximise_rows(maxima, max_logits, call.stream);
}

}  // namespace magi::walk
