// SPDX-License-Identifier: Apache-2.0
#include "runtime/walk/walk.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "runtime/backward_sums.hpp"
#include "runtime/tensors/elements.hpp"

namespace magi::walk {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();  ///< logit of no key

/// Walks the steps, each after the exchanges that it waits for: calls exchange(step) or run(what
/// is prepared for an attention call, the attention call, workspace).
template <typename Prepared, typename RunAttend, typename StartExchange>
void walk_steps(StepCall& call, const PreparedAttends<Prepared>& prepared, const RunAttend& run,
                const StartExchange& exchange) {
  std::int64_t size_bytes = 0;  // of the largest run
  for (const auto& attend : prepared) {
    if (attend != nullptr) size_bytes = std::max(size_bytes, attend->workspace_bytes());
  }
  const DeviceWorkspace workspace = call.begin_pass(size_bytes);
  for (std::size_t place = 0; place < call.list().size(); ++place) {
    const Step& step = call.list()[place];
    for (const std::int32_t before : step.after) {
      if (before >= 0) call.await(static_cast<std::size_t>(before));
    }
    call.trace.span(SpanKind::Step, static_cast<std::int64_t>(place), [&] {
      if (step.kind == StepKind::Exchange) return exchange(step);
      const Range calls = call.steps.calls_of[static_cast<std::size_t>(step.index)];
      for (auto c = static_cast<std::size_t>(calls.begin); c < static_cast<std::size_t>(calls.end);
           ++c) {
        if (prepared[c] != nullptr) run(*prepared[c], call.steps.attends[c], workspace);
      }
    });
  }
}

/// Lends where the attention calls of each query segment write their maxima, which the first
/// overwrites: heads by segment. One segment writes the result itself.
TensorView lend_maxima(StepCall& call, const TensorView& max_logits) {
  const auto num_segments = static_cast<std::int64_t>(call.steps.q_segments.size());
  if (max_logits.empty() || (num_segments == 1 && call.steps.shares.rows_q > 0)) return max_logits;
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

void run_backward(StepCall& call) {
  BackwardSums sums(call);
  const auto run = [&](const PreparedBackward& attention, const AttendCall& attend,
                       const DeviceWorkspace& workspace) {
    if (attend.is_idle && !is_given(call.args.inputs.sink)) {
      // No keys and no sink: dq is 0, that of all shares with the first one's.
      if (attend.share > 0) return;
      return clear_elements(call.tensors(Role::QueryGradients, -1, attend.attend.heads)[0],
                            call.stream);
    }
    attention.run(sums.args_of(attend), workspace, call.stream);
  };
  walk_steps(call, call.memory.attends().backward(call.args), run, [&](const Step& step) {
    const Exchange& exchange = call.exchange_of(step);
    if (exchange.role == Role::KeyGradients) sums.complete(exchange);
    call.exchange(step);
    if (exchange.role == Role::KeysValues) sums.note_keys(exchange);
  });
  sums.store();
}

}  // namespace magi::walk
