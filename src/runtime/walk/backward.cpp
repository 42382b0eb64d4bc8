// SPDX-License-Identifier: Apache-2.0
#include "runtime/backward_sums.hpp"
#include "runtime/tensors/elements.hpp"
#include "runtime/walk/walk.hpp"

namespace magi::walk {

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
