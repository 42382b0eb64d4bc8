// SPDX-License-Identifier: Apache-2.0
#include "runtime/step_trace.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "runtime/masks.hpp"
#include "runtime/pipeline.hpp"

namespace magi::testing {
namespace {

/// The spans of one rank's forward and backward.
std::vector<StepSpan> traced(const std::shared_ptr<const Plan>& plan, Communicator& communicator) {
  const auto rank = static_cast<std::size_t>(communicator.rank());
  const std::int64_t rows = plan->placement_q.rows_of(communicator.rank());
  const std::int64_t heads_q = plan->config.num_heads_q, heads_kv = plan->config.num_heads_kv;
  HostTensor<float> q({rows, heads_q, 8}), k({rows, heads_kv, 8}), v({rows, heads_kv, 8});
  HostTensor<float> out({rows, heads_q, 8}), lse({rows, heads_q}), dq({rows, heads_q, 8});
  HostTensor<float> dk({rows, heads_kv, 8}), dv({rows, heads_kv, 8});
  std::ranges::fill(q.elements(), 0.01f * static_cast<float>(rank));
  DistributedAttention attention(plan, communicator);
  const AttentionInputs inputs{.q = q, .k = k, .v = v};
  const AttentionResult result{.out = out, .lse = lse};
  attention.forward(inputs, result);  // before the trace: not noted
  EXPECT_TRUE(attention.stop_trace().empty());
  attention.start_trace();
  attention.forward(inputs, result);
  attention.backward(inputs, result, {.dout = out}, {.dq = dq, .dk = dk, .dv = dv});
  std::vector<StepSpan> spans = attention.stop_trace();
  attention.forward(inputs, result);  // behind it: not noted either
  EXPECT_TRUE(attention.stop_trace().empty());
  return spans;
}

void expect_sound(const std::vector<StepSpan>& spans, const std::vector<Step>& steps) {
  const auto pass = std::ranges::find(spans, SpanKind::Pass, &StepSpan::kind);
  ASSERT_NE(pass, spans.end());
  EXPECT_EQ(pass->step, -1);
  std::vector<std::int32_t> noted;
  std::map<std::int32_t, StepSpan> awaited;
  std::int64_t last_begin = pass->begin_ns;
  for (const StepSpan& span : spans) {
    EXPECT_LE(span.begin_ns, span.end_ns);
    EXPECT_GE(span.begin_ns, pass->begin_ns);
    EXPECT_LE(span.end_ns, pass->end_ns);
    if (span.kind == SpanKind::Step) {
      noted.push_back(span.step);
      EXPECT_GE(span.begin_ns, last_begin);
      last_begin = span.begin_ns;
    }
    if (span.kind == SpanKind::Await) {
      EXPECT_TRUE(awaited.emplace(span.step, span).second);
    }
  }
  std::vector<std::int32_t> all(steps.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i);
  EXPECT_EQ(noted, all) << "every step once, in order";
  for (std::size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(awaited.contains(static_cast<std::int32_t>(i)), steps[i].kind == StepKind::Exchange);
  }
}

TEST(StepTrace, NotesEveryStepAndEveryWaitOnceInsideItsPass) {
  const AttentionCase test =
      make_case(masks_of_all_kinds(120)[5].mask, DType::Float32, {4, 2, 8, 8}, 3);
  for (const std::int32_t degree : {0, 1, 2}) {
    SCOPED_TRACE(degree);
    PlanConfig config = plan_config(test, 3);
    config.overlap_degree = degree;
    const auto plan = shared_plan(test.mask, config);
    std::vector<std::vector<StepSpan>> spans(3);
    run_ranks(3, [&](Communicator& communicator) {
      spans[static_cast<std::size_t>(communicator.rank())] = traced(plan, communicator);
    });
    for (std::size_t rank = 0; rank < spans.size(); ++rank) {
      std::vector<StepSpan> forward, backward;
      for (const StepSpan& span : spans[rank]) {
        EXPECT_EQ(span.call, span.is_backward ? 1 : 0);
        (span.is_backward ? backward : forward).push_back(span);
      }
      expect_sound(forward, plan->ranks[rank].forward);
      expect_sound(backward, plan->ranks[rank].backward);
    }
  }
}

}  // namespace
}  // namespace magi::testing
