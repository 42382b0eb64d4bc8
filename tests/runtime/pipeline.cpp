// SPDX-License-Identifier: Apache-2.0
#include "runtime/pipeline.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "plan/placements.hpp"
#include "runtime/head_sections.hpp"

namespace magi::testing {
namespace {

using Values = std::vector<double>;

/// Rows of a row-major array that a rank holds; rows beyond `num_rows` are padding.
Values take(const Values& global, const std::vector<std::int32_t>& rows, std::int32_t num_rows,
            double padding = 0.5) {
  const std::size_t width = num_rows > 0 ? global.size() / static_cast<std::size_t>(num_rows) : 0;
  Values local(rows.size() * width, padding);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] >= num_rows) continue;
    const auto from =
        global.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(rows[i]) * width);
    std::copy_n(from, width, local.begin() + static_cast<std::ptrdiff_t>(i * width));
  }
  return local;
}

/// The inverse: what padding rows hold is returned.
Values put(const Values& local, const std::vector<std::int32_t>& rows, std::int32_t num_rows,
           Values& global) {
  Values padding;
  const std::size_t width = rows.empty() ? 0 : local.size() / rows.size();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::size_t j = 0; j < width; ++j) {
      const double value = local[i * width + j];
      if (rows[i] < num_rows) {
        global[static_cast<std::size_t>(rows[i]) * width + j] = value;
      } else {
        padding.push_back(value);
      }
    }
  }
  return padding;
}

/// One rank's tensors of a case.
class LocalCase {
 public:
  LocalCase(const AttentionCase& test, const Plan& plan, std::int32_t rank, TensorHome& home)
      : test_(test),
        home_(home),
        in_(test.dense),
        rows_q_(global_rows(plan.placement_q, rank)),
        rows_k_(global_rows(plan.placement_k, rank)),
        is_per_row_(in_.params.sink_layout == SinkLayout::RowSinkHead) {
    const auto sq = static_cast<std::int64_t>(rows_q_.size());
    const auto sk = static_cast<std::int64_t>(rows_k_.size());
    q_ = array(test.dtype, {sq, in_.heads_q, in_.dim_qk}, take(in_.q, rows_q_, in_.rows_q));
    k_ = array(test.dtype, {sk, in_.heads_kv, in_.dim_qk}, take(in_.k, rows_k_, in_.rows_k));
    v_ = array(test.dtype, {sk, in_.heads_kv, in_.dim_v}, take(in_.v, rows_k_, in_.rows_k));
    dout_ = array(test.dtype, {sq, in_.heads_q, in_.dim_v}, take(test.dout, rows_q_, in_.rows_q));
    // With a sink, the lse of a padding row depends on it: that gradient must be 0.
    const Values dlse = take(test.dlse, rows_q_, in_.rows_q, 0.0);
    if (!test.dlse.empty()) dlse_ = array(test.real(), {sq, in_.heads_q}, dlse);
    out_ = HostArray(test.result_dtype, {sq, in_.heads_q, in_.dim_v}, test.layout);
    lse_ = HostArray(test.real(), {sq, in_.heads_q}, Layout::Packed);
    max_logits_ = HostArray(test.real(), {in_.heads_q}, Layout::Packed);
    dq_ = HostArray(test.result_dtype, {sq, in_.heads_q, in_.dim_qk}, test.layout);
    dk_ = HostArray(test.result_dtype, {sk, in_.heads_kv, in_.dim_qk}, test.layout);
    dv_ = HostArray(test.result_dtype, {sk, in_.heads_kv, in_.dim_v}, test.layout);
    const std::vector<std::int64_t> sink_shape =
        is_per_row_ ? std::vector<std::int64_t>{sq, in_.num_sinks, in_.heads_q}
                    : std::vector<std::int64_t>{in_.num_sinks, in_.heads_q};
    const Values sink = is_per_row_ ? take(in_.sink, rows_q_, in_.rows_q) : in_.sink;
    if (in_.num_sinks > 0) {
      sink_ = HostArray(test.real(), sink_shape, Layout::Packed, sink);
      dsink_ = HostArray(test.real(), sink_shape, Layout::Packed);
    }
  }

  AttentionInputs inputs() {
    return {.q = view(q_),
            .k = view(k_),
            .v = view(v_),
            .sink = in_.num_sinks > 0 ? view(sink_) : TensorView{},
            .params = in_.params,
            .is_fast_backward = test_.is_fast_backward};
  }
  AttentionResult result() {
    return {.out = view(out_), .lse = view(lse_), .max_logits = view(max_logits_)};
  }
  OutputGradients output_gradients() {
    return {.dout = view(dout_), .dlse = test_.dlse.empty() ? TensorView{} : view(dlse_)};
  }
  InputGradients input_gradients() {
    return {.dq = view(dq_),
            .dk = view(dk_),
            .dv = view(dv_),
            .dsink = in_.num_sinks > 0 ? view(dsink_) : TensorView{}};
  }

  void gather(PassKind kind, PipelineRun& run) const {
    // A row without keys gives 0, with a sink or not.
    const Values padding = put(out_.values(), rows_q_, in_.rows_q, run.forward.out);
    EXPECT_EQ(padding, Values(padding.size(), 0.0)) << "out of padding rows";
    put(lse_.values(), rows_q_, in_.rows_q, run.forward.lse);
    const Values max_logits = max_logits_.values();
    if (!run.forward.max_logits.empty()) {
      EXPECT_EQ(max_logits, run.forward.max_logits) << "ranks disagree on max_logits";
    }
    run.forward.max_logits = max_logits;
    EXPECT_EQ(out_.num_spoiled_gaps(), 0);
    if (kind == PassKind::Forward) return;
    put(dq_.values(), rows_q_, in_.rows_q, run.gradients.dq);
    put(dk_.values(), rows_k_, in_.rows_k, run.gradients.dk);
    put(dv_.values(), rows_k_, in_.rows_k, run.gradients.dv);
    if (in_.num_sinks > 0) gather_sink(run.gradients.dsink);
    EXPECT_EQ(dq_.num_spoiled_gaps() + dk_.num_spoiled_gaps() + dv_.num_spoiled_gaps(), 0);
  }

 private:
  HostArray array(DType dtype, std::vector<std::int64_t> shape, const Values& values) const {
    return HostArray(dtype, std::move(shape), test_.layout, values);
  }

  void gather_sink(Values& dsink) const {
    const Values local = dsink_.values();
    if (is_per_row_) {
      put(local, rows_q_, in_.rows_q, dsink);
      return;
    }
    for (std::size_t i = 0; i < local.size(); ++i) dsink[i] += local[i];
  }

  TensorView view(HostArray& array) { return home_.view(array); }

  const AttentionCase& test_;
  TensorHome& home_;
  const reference::DenseInput& in_;
  std::vector<std::int32_t> rows_q_, rows_k_;
  bool is_per_row_;
  HostArray q_, k_, v_, sink_, dout_, dlse_, out_, lse_, max_logits_, dq_, dk_, dv_, dsink_;
};

std::mutex gather_mutex;

}  // namespace

AttentionCase make_case(const Mask& mask, DType dtype, const CaseSizes& sizes, std::uint64_t seed) {
  AttentionCase test;
  test.mask = mask;
  test.dtype = test.result_dtype = dtype;
  test.dense = {.rows_q = mask.rows_q,
                .rows_k = mask.rows_k,
                .heads_q = sizes.heads_q,
                .heads_kv = sizes.heads_kv,
                .dim_qk = sizes.dim_qk,
                .dim_v = sizes.dim_v};
  RandomStream random(seed);
  draw_values(random, test);
  return test;
}

AttentionCase with_all_options(AttentionCase test, SinkLayout layout) {
  test.dense.num_sinks = 2;
  test.dense.params = {.softmax_scale = 0.3, .softcap = 2.0, .sink_layout = layout};
  test.dlse.resize(1);
  RandomStream random(2);
  draw_values(random, test);
  return test;
}

PlanConfig plan_config(const AttentionCase& test, std::int32_t num_ranks) {
  const reference::DenseInput& in = test.dense;
  PlanConfig config{.num_ranks = num_ranks,
                    .num_heads_q = in.heads_q,
                    .num_heads_kv = in.heads_kv,
                    .head_dim_qk = in.dim_qk,
                    .head_dim_v = in.dim_v,
                    .element_bytes = static_cast<std::int32_t>(dtype_bytes(test.dtype)),
                    .overlap_degree = 1,
                    .min_stage_rows = 1};
  return config;
}

std::shared_ptr<const Plan> shared_plan(const Mask& mask, const PlanConfig& config) {
  return std::make_shared<const Plan>(make_plan(mask, config));
}

PipelineRun empty_run(const AttentionCase& test, std::int32_t num_ranks) {
  PipelineRun run;
  const reference::DenseInput& in = test.dense;
  const double nan = std::nan("");
  run.forward.out.assign(test.dout.size(), nan);
  run.forward.lse.assign(static_cast<std::size_t>(in.rows_q) * static_cast<std::size_t>(in.heads_q),
                         nan);
  run.gradients.dq.assign(in.q.size(), nan);
  run.gradients.dk.assign(in.k.size(), nan);
  run.gradients.dv.assign(in.v.size(), nan);
  run.gradients.dsink.assign(in.sink.size(), 0.0);
  run.after_forward.resize(static_cast<std::size_t>(num_ranks));
  run.after_backward.resize(static_cast<std::size_t>(num_ranks));
  run.workspace_bytes.resize(static_cast<std::size_t>(num_ranks));
  return run;
}

void run_rank(const AttentionCase& test, const std::shared_ptr<const Plan>& plan,
              Communicator& communicator, PipelineRun& run) {
  TensorHome host;
  run_rank(test, plan, communicator, {.home = host}, run);
}

void run_rank(const AttentionCase& test, const std::shared_ptr<const Plan>& plan,
              Communicator& communicator, const RankRun& how, PipelineRun& run) {
  const auto rank = static_cast<std::size_t>(communicator.rank());
  LocalCase local(test, *plan, communicator.rank(), how.home);
  const bool is_whole = how.num_sections == 1;
  DistributedAttention attention(is_whole ? plan : plan_of_section(*plan, how.num_sections),
                                 communicator, how.options);
  const AttentionInputs inputs = local.inputs();
  const AttentionResult result = local.result();
  const PassArgs args{.inputs = inputs,
                      .result = result,
                      .output_gradients = local.output_gradients(),
                      .input_gradients = local.input_gradients()};
  CommCounters after_forward;
  for (int i = 0; i < how.repeats; ++i) {
    for_each_section(args, how.num_sections, [&](const PassArgs& one) {
      attention.forward(one.inputs, one.result, how.home.stream());
    });
    if (i == 0) after_forward = communicator.counters();
    if (how.kind == PassKind::Forward) continue;
    for_each_section(args, how.num_sections, [&](const PassArgs& one) {
      attention.backward(one.inputs, one.result, one.output_gradients, one.input_gradients,
                         how.home.stream());
    });
  }
  how.home.take_back_sync();
  const CommCounters after_backward = communicator.counters();
  const std::lock_guard lock(gather_mutex);
  run.after_forward[rank] = after_forward;
  run.after_backward[rank] = after_backward;
  run.workspace_bytes[rank] = attention.workspace_bytes();
  local.gather(how.kind, run);
}

PipelineRun run_pipeline(const AttentionCase& test, const std::shared_ptr<const Plan>& plan) {
  PipelineRun run = empty_run(test, plan->config.num_ranks);
  run_ranks(plan->config.num_ranks,
            [&](Communicator& communicator) { run_rank(test, plan, communicator, run); });
  return run;
}

void expect_sound(const Plan& plan) { ASSERT_EQ(check_plan(plan), std::vector<std::string>()); }

void expect_pipeline_close(const AttentionCase& test, const std::shared_ptr<const Plan>& plan) {
  SCOPED_TRACE(test.describe());
  const PipelineRun run = run_pipeline(test, plan);
  expect_forward_close(test, run.forward);
  expect_backward_close(test, dense_forward(test.dense, test.counts()), run.gradients);
}

}  // namespace magi::testing
