// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <tuple>

#include "runtime/arrival/arrival.hpp"

namespace magi::arrival {
namespace {

/// Lets the result become NaN where the keys do not come.
void guard_result(comm::PendingKeys& keys, const TensorView& out) {
  const std::int64_t row = out.shape[1] * out.shape[2];
  if (out.empty() || out.stride[0] != row) return;
  keys.guard_results(static_cast<std::byte*>(out.data),
                     out.shape[0] * row * static_cast<std::int64_t>(dtype_bytes(out.dtype)));
}

}  // namespace

void run_forward(StepCall& call) {
  const PreparedForward& attention = *call.memory.attends().forward(call.args).front();
  const AttendCall& attend = call.steps.attends.front();
  const bool reads_own_keys = !call.steps.rows_of_keys(attend).own.empty();
  const DeviceWorkspace workspace = call.begin_pass(attention.workspace_bytes());

  comm::PendingKeys* keys = nullptr;
  KeyArrivals arrivals;
  call.trace.span(SpanKind::Step, kKeys, [&] {
    std::tie(keys, arrivals) =
        start_keys(call, {.is_without_own = reads_own_keys, .is_beside_attention = true});
  });
  call.trace.span(SpanKind::Step, kAttend, [&] {
    const ForwardArgs args = forward_args(call, attend, call.args.result.max_logits);
    if (reads_own_keys) {
      const TensorGroup own = call.tensors(Role::KeysValues, -1, attend.attend.heads);
      arrivals.own_k = own[0];
      arrivals.own_v = own[1];
    }
    const TensorView& whole_out = call.args.whole_out;
    guard_result(*keys, whole_out.empty() ? args.out : whole_out);
    const auto run = attention.begin_in_flight(args, workspace, arrivals, call.stream);
    keys->push(call.stream);
    run->attend();
    call.await(kKeys);
    run->finish();
  });
}

}  // namespace magi::arrival
