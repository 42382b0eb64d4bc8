// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "magi/runtime.hpp"
#include "runtime/rank_steps.hpp"

namespace magi {

/// The notes of what a rank's host did of its calls' steps, while a trace is on.
struct StepTrace {
  void start() { *this = {.is_on = true}; }
  std::vector<StepSpan> stop() { return std::exchange(*this, {}).spans; }

  bool is_on = false;
  std::int32_t num_calls = 0;
  std::vector<StepSpan> spans = {};
};

/// The place where the spans of one call go; nowhere if the trace is off as the call begins.
class CallTrace {
 public:
  CallTrace(StepTrace& trace, Pass pass)
      : trace_(trace.is_on ? &trace : nullptr),
        is_backward_(pass == Pass::Backward),
        call_(trace.is_on ? trace.num_calls++ : 0) {}

  /// Runs `body` as a span: of the pass (step -1), of a step of its list, or of a wait for one.
  template <typename Body>
  void span(SpanKind kind, std::int64_t step, const Body& body) const {
    if (trace_ == nullptr) return body();
    const std::int64_t begin_ns = now_ns();
    body();
    trace_->spans.push_back({.kind = kind,
                             .is_backward = is_backward_,
                             .call = call_,
                             .step = static_cast<std::int32_t>(step),
                             .begin_ns = begin_ns,
                             .end_ns = now_ns()});
  }

 private:
  static std::int64_t now_ns() {
    using std::chrono::steady_clock;
    return std::chrono::nanoseconds(steady_clock::now().time_since_epoch()).count();
  }

  StepTrace* trace_;
  bool is_backward_;
  std::int32_t call_;
};

}  // namespace magi
