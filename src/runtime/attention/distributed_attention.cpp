// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/check.hpp"
#include "comm/rows/abort_group.hpp"
#include "kernels/attention/backend.hpp"
#include "magi/runtime.hpp"
#include "runtime/arrival/arrival.hpp"
#include "runtime/check_attention.hpp"
#include "runtime/flat_tensors.hpp"
#include "runtime/step_call.hpp"
#include "runtime/step_trace.hpp"
#include "runtime/tensors/check_device.hpp"
#include "runtime/walk/walk.hpp"

// A call from its arguments on: it is checked (check_attention.hpp), becomes a StepCall
// (step_call.hpp), and one of two executors runs the pass with it: the walk of the plan's steps
// (walk/walk.hpp), or attention that starts while its keys come (arrival/arrival.hpp).
// src/runtime/README.md follows a call and names the files.
namespace magi {

/// The state that a rank keeps between calls.
struct AttentionState {
  AttentionState(std::shared_ptr<const Plan> given, Communicator& group,
                 const AttentionOptions& choices)
      : plan(std::move(given)),
        communicator(group),
        options(choices),
        flat(plan->num_head_shares == 1 ? plan : std::make_shared<const Plan>(flat_plan(*plan))),
        steps(*flat, group.rank(), HeadShares(*plan, group.rank())),
        maximum(group.rank(), group.num_ranks()) {}

  StepMemory& at(std::int32_t device) {
    const auto known = memories.find(device);
    if (known != memories.end()) return *known->second;
    // Made first: a device that is refused leaves no entry.
    auto memory = std::make_unique<StepMemory>(steps, options, communicator, device);
    return *memories.emplace(device, std::move(memory)).first->second;
  }

  void check_stream(StepMemory& memory, std::int32_t device, void* stream) const {
    if (device == kCpuDevice || communicator.num_ranks() == 1 ||
        memory.exchanger().is_capturable()) {
      return;
    }
    check_not_captured(stream, "attention over ranks, but over nvlink and nccl");
  }

  void maximise_over_ranks(StepMemory& memory, const TensorView& values,
                           const StepCall& call) const {
    if (values.empty() || communicator.num_ranks() == 1) return;
    const TensorView gathered =
        memory.lend(values.dtype, {communicator.num_ranks(), values.shape[0]});
    maximum.apply(memory.exchanger(), values, gathered,
                  {.plan_digest = plan->digest, .options = call.options()}, call.stream);
  }

  std::shared_ptr<const Plan> plan;
  Communicator& communicator;
  AttentionOptions options;
  std::shared_ptr<const Plan> flat;  ///< what runs
  RankSteps steps;
  comm::RankMaximum maximum;
  std::map<std::int32_t, std::unique_ptr<StepMemory>> memories;  ///< by device, those used so far
  StepTrace trace;
};

namespace {

/// Refuses what no device allows. StepMemory checks the rest, when a call tells the device.
void check_choices(const AttentionOptions& options) {
  if ((options.allocator.allocate == nullptr) != (options.allocator.release == nullptr)) {
    throw invalid("options.allocator", "one function", "allocate and release, or neither");
  }
  constexpr std::int32_t kMostSms = 1 << 20;
  if (options.exchange_sms < 0 || options.exchange_sms > kMostSms) {
    throw invalid("options.exchange_sms", options.exchange_sms,
                  "0 to " + std::to_string(kMostSms) + ", and less than a GPU has");
  }
  if (options.backend.empty()) return;
  std::string allowed;
  for (const std::string& name : backend_names()) {
    if (name == options.backend) return;
    allowed += (allowed.empty() ? "" : ", ") + name;
  }
  throw invalid("options.backend", options.backend, allowed);
}

}  // namespace

DistributedAttention::DistributedAttention(std::shared_ptr<const Plan> plan,
                                           Communicator& communicator,
                                           const AttentionOptions& options) {
  if (plan == nullptr) throw invalid("plan", "null", "a plan");
  if (plan->ranks.empty()) throw invalid("plan.ranks", "empty", "those of a plan that was made");
  for (std::size_t e = 0; e < plan->exchanges.size(); ++e) {
    const std::int32_t hop = plan->exchanges[e].hop;
    if (hop == 0 || (hop == 1 && has_nodes(plan->config))) continue;
    throw invalid("plan.exchanges[" + std::to_string(e) + "].hop", hop,
                  "0 (the direct way), or 1 (by node) between several nodes");
  }
  if (communicator.num_ranks() != plan->config.num_ranks) {
    throw invalid("communicator.num_ranks", communicator.num_ranks(),
                  std::to_string(plan->config.num_ranks) + " (the plan's)");
  }
  check_choices(options);
  if (!communicator.compares_plans()) check_plan_digest_sync(communicator, plan->digest);
  state_ = std::make_unique<AttentionState>(std::move(plan), communicator, options);
}

DistributedAttention::~DistributedAttention() = default;
DistributedAttention::DistributedAttention(DistributedAttention&&) noexcept = default;
DistributedAttention& DistributedAttention::operator=(DistributedAttention&&) noexcept = default;

AttentionState& DistributedAttention::state() const {
  if (state_ == nullptr) throw invalid("attention", "moved from", "an object that has its plan");
  return *state_;
}

const Plan& DistributedAttention::plan() const { return *state().plan; }

std::size_t DistributedAttention::workspace_bytes() const {
  std::size_t total = 0;
  for (const auto& [device, memory] : state().memories) total += memory->size_bytes();
  return total;
}

namespace {

/// Runs a call whose tensors are set: run(what prepare() gives), in per-share rows where the plan's
/// heads are in several shares.
template <typename Prepare, typename Run>
void run_pass(AttentionState& state, StepCall& call, const Prepare& prepare, const Run& run) {
  std::optional<FlatTensors> flat;
  if (state.steps.shares.count > 1) flat.emplace(call);
  abort_group_on_error(state.communicator, [&] { call.prepare_pass(); });
  call.check_pass();
  abort_group_on_error(state.communicator, [&] {
    const auto& prepared = prepare();
    call.begin();
    call.trace.span(SpanKind::Pass, -1, [&] {
      if (flat) flat->fill();
      run(prepared);
      if (flat) flat->give();
    });
  });
}

}  // namespace

void DistributedAttention::forward(const AttentionInputs& inputs, const AttentionResult& result,
                                   void* stream) {
  AttentionState& state = this->state();
  StepMemory& memory = state.at(inputs.q.device);
  check_forward(state.steps, memory.backend(), inputs, result);
  state.check_stream(memory, inputs.q.device, stream);
  const CallTrace trace(state.trace, Pass::Forward);
  StepCall call(state.steps, Pass::Forward, memory, stream, trace);
  set_tensors(call, inputs, result);
  run_pass(
      state, call, [&]() -> auto& { return memory.attends().forward(inputs.q.dtype); },
      [&](const PreparedAttends<PreparedForward>& prepared) {
        if (memory.attends().takes_in_flight_keys()) {
          arrival::run_forward(call, *prepared.front(), inputs, result.max_logits);
        } else {
          walk::run_forward(call, prepared, inputs, result.max_logits);
        }
        state.maximise_over_ranks(memory, result.max_logits, call);
      });
}

void DistributedAttention::backward(const AttentionInputs& inputs, const AttentionResult& result,
                                    const OutputGradients& output_gradients,
                                    const InputGradients& input_gradients, void* stream) {
  AttentionState& state = this->state();
  StepMemory& memory = state.at(inputs.q.device);
  check_backward(state.steps, memory.backend(), inputs, result, output_gradients, input_gradients);
  state.check_stream(memory, inputs.q.device, stream);
  const CallTrace trace(state.trace, Pass::Backward);
  StepCall call(state.steps, Pass::Backward, memory, stream, trace);
  set_tensors(call, inputs, result, output_gradients, input_gradients);
  const AttendCache::BackwardKind kind{.type = inputs.q.dtype,
                                       .dout_type = output_gradients.dout.dtype,
                                       .is_fast = inputs.is_fast_backward};
  run_pass(
      state, call, [&]() -> auto& { return memory.attends().backward(kind); },
      [&](const PreparedAttends<PreparedBackward>& prepared) {
        if (memory.attends().takes_in_flight_keys()) {
          arrival::run_backward(call, *prepared.front(), inputs, input_gradients.dsink);
        } else {
          walk::run_backward(call, prepared, inputs, input_gradients.dsink);
        }
      });
}

void DistributedAttention::start_trace() { state().trace.start(); }

std::vector<StepSpan> DistributedAttention::stop_trace() { return state().trace.stop(); }

}  // namespace magi
