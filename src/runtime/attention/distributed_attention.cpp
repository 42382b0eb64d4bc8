// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <optional>
#include <utility>

#include "base/check.hpp"
#include "comm/rows/abort_group.hpp"
#include "magi/runtime.hpp"
#include "runtime/arrival/arrival.hpp"
#include "runtime/check_attention.hpp"
#include "runtime/flat_tensors.hpp"
#include "runtime/head_sections.hpp"
#include "runtime/step_call.hpp"
#include "runtime/step_trace.hpp"
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
        num_sections(num_head_sections(*plan)),
        maximum(group.rank(), group.num_ranks()) {}

  /// Makes the memory of a device at its first call; one that is refused leaves no entry.
  StepMemory& at(std::int32_t device) {
    return memories.try_emplace(device, steps, options, communicator, device).first->second;
  }

  void run(const PassArgs& args, void* stream) {
    const std::int32_t device = args.inputs.q.device;
    bool is_in_sections = false;
    abort_group_unless_refused(communicator, [&] {
      is_in_sections = runs_in_sections(device);
      StepMemory& memory = (is_in_sections ? *section : *this).at(device);
      // Sections have the types, dims and strides of the whole: what is sound for it is for them.
      check_pass_args(steps, memory.attends().backend(), args);
      check_stream(memory.exchanger(), communicator, device, stream);
    });
    if (!is_in_sections) return execute(args, stream);
    // StepCall::prepare_pass refuses the first section before anything is sent, or none of them:
    // their passes are alike.
    trace.pass_span(args.pass, [&] {
      for_each_section(args, num_sections,
                       [&](const PassArgs& one) { section->execute(one, stream); });
    });
  }

  /// Whether a call comes in sections of the heads, as ranks write each other's memory
  /// (head_sections.hpp). The first call on a GPU decides: such a group has no other GPU.
  bool runs_in_sections(std::int32_t device) {
    if (num_sections == 1 || device == kCpuDevice) return false;
    if (section != nullptr) return true;
    const auto exchanger =
        communicator.make_exchanger(device, options.allocator, {.has_passes = true});
    if (exchanger == nullptr || comm::as_peer_exchanger(*exchanger) == nullptr) {
      num_sections = 1;
      return false;
    }
    section = std::make_unique<AttentionState>(plan_of_section(*plan, num_sections), communicator,
                                               options);
    return true;
  }

  void execute(const PassArgs& args, void* stream) {
    std::optional<StepCall> call;
    std::optional<FlatTensors> per_share;
    abort_group_unless_refused(communicator, [&] {
      call.emplace(steps, at(args.inputs.q.device), args, stream, trace);
      if (steps.shares.count > 1) per_share.emplace(*call);
      call->prepare_pass();
    });
    abort_group_on_error(communicator, [&] {
      call->begin();
      trace.pass_span(args.pass, [&] {
        if (per_share) per_share->fill();
        run_steps(*call);
        if (per_share) per_share->give();
      });
    });
  }

  void run_steps(StepCall& call) const {
    const bool is_arrival = call.memory.attends().takes_in_flight_keys();
    if (call.args.pass == Pass::Backward) {
      return is_arrival ? arrival::run_backward(call) : walk::run_backward(call);
    }
    is_arrival ? arrival::run_forward(call) : walk::run_forward(call);
    maximise_over_ranks(call);
  }

  void maximise_over_ranks(StepCall& call) const {
    const TensorView& values = call.args.result.max_logits;
    if (values.empty() || communicator.num_ranks() == 1) return;
    const TensorView gathered =
        call.memory.lend(values.dtype, {communicator.num_ranks(), values.shape[0]});
    maximum.apply(call.memory.exchanger(), values, gathered, call.tag(0), call.stream);
  }

  std::shared_ptr<const Plan> plan;
  Communicator& communicator;
  AttentionOptions options;
  std::shared_ptr<const Plan> flat;  ///< what runs
  RankSteps steps;
  std::int32_t num_sections;                ///< see runs_in_sections
  std::unique_ptr<AttentionState> section;  ///< which the sections take in turn
  comm::RankMaximum maximum;
  std::map<std::int32_t, StepMemory> memories;  ///< by device, those used so far
  StepTrace trace;
};

DistributedAttention::DistributedAttention(std::shared_ptr<const Plan> plan,
                                           Communicator& communicator,
                                           const AttentionOptions& options) {
  check_setup(plan.get(), communicator, options);
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
  for (const AttentionState* one = &state(); one != nullptr; one = one->section.get()) {
    for (const auto& [device, memory] : one->memories) total += memory.size_bytes();
  }
  return total;
}

void DistributedAttention::forward(const AttentionInputs& inputs, const AttentionResult& result,
                                   void* stream) {
  state().run({.pass = Pass::Forward, .inputs = inputs, .result = result}, stream);
}

void DistributedAttention::backward(const AttentionInputs& inputs, const AttentionResult& result,
                                    const OutputGradients& output_gradients,
                                    const InputGradients& input_gradients, void* stream) {
  state().run({.pass = Pass::Backward,
               .inputs = inputs,
               .result = result,
               .output_gradients = output_gradients,
               .input_gradients = input_gradients},
              stream);
}

void DistributedAttention::start_trace() { state().trace.start(); }

std::vector<StepSpan> DistributedAttention::stop_trace() { return state().trace.stop(); }

}  // namespace magi
