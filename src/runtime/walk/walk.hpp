// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "runtime/step_call.hpp"

// The walk: any plan over any exchanger of rows. Each step waits for the exchanges that it names.
// The calls are those of one pass, which have begun.
namespace magi::walk {

void run_forward(StepCall& call);
void run_backward(StepCall& call);

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

}  // namespace magi::walk
