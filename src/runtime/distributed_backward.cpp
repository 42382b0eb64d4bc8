// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include "kernels/attention/backend.hpp"
#include "runtime/abort_group.hpp"
#include "runtime/attention_state.hpp"
#include "runtime/elements.hpp"

namespace magi {
namespace {

TensorView accumulator(Buffer& buffer, const TensorView& target, DType wide) {
  if (target.dtype == wide) return target;
  return buffer.view(wide, {target.shape[0], target.shape[1], target.shape[2]});
}

/// Where the gradients of one call are summed before they reach the caller's tensors.
struct GradientSums {
  TensorView dq, dk, dv;
  TensorView partial_dk, partial_dv;  ///< of the receive buffer's rows

  GradientSums(AttentionState& state, const InputGradients& targets, DType wide)
      : dq(accumulator(state.dq, targets.dq, wide)) {
    const AttentionSchedule& schedule = state.schedule;
    const std::int64_t rows = schedule.buffer_rows;
    const std::int64_t heads = targets.dk.shape[1];
    partial_dk = state.partial_dk.view(wide, {rows, heads, targets.dk.shape[2]});
    partial_dv = state.partial_dv.view(wide, {rows, heads, targets.dv.shape[2]});
    if (schedule.is_gathered) {
      // The buffer begins with the own rows: their part of the sum is already in place.
      dk = rows_of(partial_dk, {0, schedule.rows_k});
      dv = rows_of(partial_dv, {0, schedule.rows_k});
    } else {
      dk = accumulator(state.dk, targets.dk, wide);
      dv = accumulator(state.dv, targets.dv, wide);
    }
  }

  TensorView dk_of(const WaveWork& wave) const { return select(wave, dk, partial_dk); }
  TensorView dv_of(const WaveWork& wave) const { return select(wave, dv, partial_dv); }

  void store(const InputGradients& targets) const {
    if (dq.data != targets.dq.data) convert_elements(dq, targets.dq);
    if (dk.data != targets.dk.data) convert_elements(dk, targets.dk);
    if (dv.data != targets.dv.data) convert_elements(dv, targets.dv);
  }

 private:
  static TensorView select(const WaveWork& wave, const TensorView& own, const TensorView& partial) {
    return heads_of(wave.is_own ? own : rows_of(partial, wave.buffer_rows), wave.kv_heads);
  }
};

/// Everything one backward call works on.
struct BackwardPass {
  AttentionState& state;
  const AttentionInputs& inputs;
  const AttentionResult& result;
  const OutputGradients& output_gradients;
  TensorView dsink;
  GradientSums sums;
  std::vector<std::unique_ptr<PendingExchange>> reduces;

  void attend(CastedKeys& keys, std::size_t w);
  void start_reduce(std::size_t w);
};

void BackwardPass::attend(CastedKeys& keys, std::size_t w) {
  const WaveWork& wave = state.schedule.waves[w];
  const bool is_first = w == 0;
  const TensorView dk = sums.dk_of(wave);
  const TensorView dv = sums.dv_of(wave);
  if (state.schedule.rows_q == 0 || (!is_first && wave.slices.empty())) {
    fill_elements(dk, 0.0);
    fill_elements(dv, 0.0);
  }
  if (state.schedule.rows_q == 0) {
    if (is_first && !dsink.empty()) fill_elements(dsink, 0.0);
    return;
  }
  if (!is_first && wave.slices.empty()) return;
  BackwardArgs args{.q = heads_of(inputs.q, wave.q_heads),
                    .k = keys.k(wave),
                    .v = keys.v(wave),
                    .slices = wave.slices,
                    .out = heads_of(result.out, wave.q_heads),
                    .lse = heads_of(result.lse, wave.q_heads),
                    .dout = heads_of(output_gradients.dout, wave.q_heads),
                    .dq = heads_of(sums.dq, wave.q_heads),
                    .dk = dk,
                    .dv = dv,
                    .is_accumulating = !is_first,
                    .is_writing_keys = true,
                    .params = inputs.params};
  if (!output_gradients.dlse.empty()) args.dlse = heads_of(output_gradients.dlse, wave.q_heads);
  if (is_first && !dsink.empty()) {
    args.sink = inputs.sink;
    args.dsink = dsink;
  }
  find_backend(state.options.backend, kCpuDevice)
      ->prepare_backward(args, {})
      ->run(args, {}, nullptr);
}

void BackwardPass::start_reduce(std::size_t w) {
  const WaveWork& wave = state.schedule.waves[w];
  if (!wave.is_exchanged) return;
  const TensorView partials[] = {sums.dk_of(wave), sums.dv_of(wave)};
  const TensorView owners[] = {heads_of(sums.dk, wave.kv_heads), heads_of(sums.dv, wave.kv_heads)};
  reduces.push_back(state.communicator->group_reduce(
      partials, owners, *wave.exchange, ExchangeKind::Sum,
      {.plan_digest = state.plan->digest, .stage = static_cast<std::int32_t>(w)}));
}

}  // namespace

void DistributedAttention::backward(const AttentionInputs& inputs, const AttentionResult& result,
                                    const OutputGradients& output_gradients,
                                    const InputGradients& input_gradients, void* stream) {
  AttentionState& state = *state_;
  check_backward(state.schedule, state.plan->config, inputs, result, output_gradients,
                 input_gradients);
  if (inputs.q.device != kCpuDevice) {
    return state.on_device(inputs.q.device)
        .backward(inputs, result, output_gradients, input_gradients, stream);
  }
  std::optional<BackwardPass> pass;
  std::optional<CastedKeys> keys;
  abort_group_on_error(*state.communicator, [&] {
    pass.emplace(BackwardPass{.state = state,
                              .inputs = inputs,
                              .result = result,
                              .output_gradients = output_gradients,
                              .dsink = input_gradients.dsink,
                              .sums = {state, input_gradients, accumulator_type(inputs.q.dtype)},
                              .reduces = {}});
    keys.emplace(state, inputs);
    for (std::size_t w = 0; w < state.schedule.waves.size(); ++w) {
      keys->wait_sync(w);
      pass->attend(*keys, w);
      // Wave 0 has written the own part by now, so owners add in the order: own, then rank order,
      // wave by wave.
      pass->start_reduce(w);
    }
    for (const auto& reduce : pass->reduces) reduce->wait_sync();
    pass->sums.store(input_gradients);
  });
}

}  // namespace magi
