// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "magi/runtime.hpp"
#include "runtime/rank_steps.hpp"

namespace magi {

/// The notes of what a rank's host did of its calls' steps, while it is on.
struct StepTrace {
  void start() { *this = {.is_on = true}; }
  std::vector<StepSpan> stop() { return std::exchange(*this, {}).spans; }

  /// Runs `body`, the pass of a call, as a span; those inside are of this call.
  template <typename Body>
  void pass_span(Pass pass, const Body& body) {
    is_backward = pass == Pass::Backward;
    ++present_call;  // which one that throws has to itself, too
    span(SpanKind::Pass, -1, body);
  }
  /// Runs `body` as a span of a step of the pass's list, or of a wait for one.
  template <typename Body>
  void span(SpanKind kind, std::int64_t step, const Body& body) {
    if (!is_on) return body();
    const std::int64_t begin_ns = now_ns();
    body();
    spans.push_back({.kind = kind,
                     .is_backward = is_backward,
                     .call = present_call,
                     .step = static_cast<std::int32_t>(step),
                     .begin_ns = begin_ns,
                     .end_ns = now_ns()});
  }
  static std::int64_t now_ns() {
    using std::chrono::steady_clock;
    return std::chrono::nanoseconds(steady_clock::now().time_since_epoch()).count();
  }

  bool is_on = false;
  bool is_backward = false;
  std::int32_t present_call = -1;
  std::vector<StepSpan> spans = {};
};

}  // namespace magi
