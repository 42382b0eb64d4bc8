// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "base/check.hpp"
#include "kernels/attention/backend.hpp"
#include "magi/runtime.hpp"
#include "runtime/abort_group.hpp"
#include "runtime/attention_state.hpp"
#include "runtime/elements.hpp"

namespace magi {
namespace {

/// values[i] = max of values[i] over the ranks.
template <typename Value>
void max_over_ranks_sync(std::span<Value> values, Communicator& communicator) {
  for (const auto& bytes : communicator.allgather_sync(std::as_bytes(values))) {
    MAGI_CHECK(bytes.size() == values.size_bytes());
    for (std::size_t i = 0; i < values.size(); ++i) {
      Value other;
      std::memcpy(&other, bytes.data() + i * sizeof(Value), sizeof(Value));
      values[i] = std::max(values[i], other);
    }
  }
}

void max_over_ranks_sync(const TensorView& tensor, Communicator& communicator) {
  if (communicator.num_ranks() == 1) return;
  const auto count = static_cast<std::size_t>(tensor.shape[0]);
  if (tensor.dtype == DType::Float64) {
    max_over_ranks_sync(std::span(static_cast<double*>(tensor.data), count), communicator);
  } else {
    max_over_ranks_sync(std::span(static_cast<float*>(tensor.data), count), communicator);
  }
}

/// Wave by wave in the order of arrival, each merged into what is there. The own keys come first
/// and bring the sink in.
void attend_waves(const AttentionState& state, CastedKeys& keys, const AttentionInputs& inputs,
                  const AttentionResult& result) {
  const AttentionSchedule& schedule = state.schedule;
  const auto backend = find_backend(state.options.backend, kCpuDevice);
  for (std::size_t w = 0; w < schedule.waves.size(); ++w) {
    const WaveWork& wave = schedule.waves[w];
    keys.wait_sync(w);
    if (schedule.rows_q == 0 || (w > 0 && wave.slices.empty())) continue;
    ForwardArgs args{.q = heads_of(inputs.q, wave.q_heads),
                     .k = keys.k(wave),
                     .v = keys.v(wave),
                     .slices = wave.slices,
                     .out = heads_of(result.out, wave.q_heads),
                     .lse = heads_of(result.lse, wave.q_heads),
                     .is_merging = w > 0,
                     .params = inputs.params};
    if (w == 0) args.sink = inputs.sink;
    if (!result.max_logits.empty()) {
      args.max_logits = result.max_logits.slice(0, wave.q_heads.begin, wave.q_heads.end);
    }
    backend->prepare_forward(args, {})->run(args, {}, nullptr);
  }
}

}  // namespace

std::size_t AttentionState::workspace_bytes() const {
  std::size_t total = 0;
  for (const Buffer* buffer :
       {&received_k, &received_v, &out, &dq, &dk, &dv, &partial_dk, &partial_dv}) {
    total += buffer->size_bytes();
  }
  for (const auto& [device, attention] : devices) total += attention->workspace_bytes();
  return total;
}

DeviceAttention& AttentionState::on_device(std::int32_t device) {
  std::unique_ptr<DeviceAttention>& attention = devices[device];
  if (attention == nullptr) {
    attention = make_device_attention({.plan = *plan,
                                       .schedule = schedule,
                                       .options = options,
                                       .communicator = *communicator,
                                       .device = device});
  }
  return *attention;
}

DistributedAttention::DistributedAttention(std::shared_ptr<const Plan> plan,
                                           Communicator& communicator,
                                           const AttentionOptions& options)
    : state_(std::make_unique<AttentionState>()) {
  if (plan == nullptr) throw invalid("plan", "null", "a plan");
  if (communicator.num_ranks() != plan->config.num_ranks) {
    throw invalid("communicator.num_ranks", communicator.num_ranks(),
                  std::to_string(plan->config.num_ranks) + " (the plan's)");
  }
  if ((options.allocator.allocate == nullptr) != (options.allocator.release == nullptr)) {
    throw invalid("options.allocator", "one function", "allocate and release, or neither");
  }
  check_plan_digest_sync(communicator, plan->digest);
  state_->rank = communicator.rank();
  state_->communicator = &communicator;
  state_->schedule = make_attention_schedule(*plan, state_->rank);
  state_->options = options;
  state_->plan = std::move(plan);
}

DistributedAttention::~DistributedAttention() = default;
DistributedAttention::DistributedAttention(DistributedAttention&&) noexcept = default;
DistributedAttention& DistributedAttention::operator=(DistributedAttention&&) noexcept = default;

const Plan& DistributedAttention::plan() const { return *state_->plan; }

std::size_t DistributedAttention::workspace_bytes() const { return state_->workspace_bytes(); }

void DistributedAttention::forward(const AttentionInputs& inputs, const AttentionResult& result,
                                   void* stream) {
  AttentionState& state = *state_;
  const AttentionSchedule& schedule = state.schedule;
  check_forward(schedule, state.plan->config, inputs, result);
  if (inputs.q.device != kCpuDevice) {
    return state.on_device(inputs.q.device).forward(inputs, result, stream);
  }
  // Several calls merge in the accumulator type; one call may write the caller's type at once.
  const DType wide = accumulator_type(inputs.q.dtype);
  AttentionResult sum = result;
  std::optional<CastedKeys> keys;
  abort_group_on_error(*state.communicator, [&] {
    if (schedule.num_calls > 1 && result.out.dtype != wide) {
      sum.out =
          state.out.view(wide, {result.out.shape[0], result.out.shape[1], result.out.shape[2]});
    }
    if (!sum.max_logits.empty() && schedule.rows_q == 0) {
      fill_elements(sum.max_logits, -std::numeric_limits<double>::infinity());
    }
    keys.emplace(state, inputs);
    attend_waves(state, *keys, inputs, sum);
    if (sum.out.data != result.out.data) convert_elements(sum.out, result.out);
    if (!sum.max_logits.empty()) max_over_ranks_sync(sum.max_logits, *state.communicator);
  });
}

}  // namespace magi
