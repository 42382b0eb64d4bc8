// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "runtime/attention_state.hpp"
#include "runtime/device_elements.hpp"
#include "runtime/device_state.hpp"

namespace magi {
namespace {

/// Everything one forward call works on.
struct ForwardPass {
  ForwardPass(DeviceState& given_state, const AttentionInputs& given_inputs,
              const AttentionResult& result);
  void place(const DeviceCall& call);
  void attend(std::size_t wave, cudaStream_t stream);
  void maximise_over_ranks(cudaStream_t stream);

  DeviceState& state;
  const AttentionInputs& inputs;
  AttentionResult sum;  ///< out: float32 where several waves merge
  CallLayout layout;
  DeviceKeys keys;
  std::size_t out_at = 0, logits_at = 0;
  float* logits = nullptr;  ///< [2, ranks, heads]: what is sent, what is received
  bool has_own_out = false;
};

ForwardPass::ForwardPass(DeviceState& given_state, const AttentionInputs& given_inputs,
                         const AttentionResult& result)
    : state(given_state),
      inputs(given_inputs),
      sum(result),
      keys(state, given_inputs, layout),
      has_own_out(state.setup.schedule.num_calls > 1 && result.out.dtype != DType::Float32) {
  if (has_own_out) {
    sum.out = contiguous_view(nullptr, DType::Float32,
                              {result.out.shape[0], result.out.shape[1], result.out.shape[2]});
    sum.out.device = result.out.device;
    out_at = layout.add(sum.out.num_elements() * std::int64_t{sizeof(float)});
  }
  if (!sum.max_logits.empty() && state.setup.communicator.num_ranks() > 1) {
    logits_at = layout.add(2 * state.setup.communicator.num_ranks() * sum.max_logits.shape[0] *
                           std::int64_t{sizeof(float)});
  }
}

void ForwardPass::place(const DeviceCall& call) {
  if (has_own_out) sum.out.data = call.at(out_at);
  logits = reinterpret_cast<float*>(call.at(logits_at));
}

/// Each wave is merged into what is there. The own keys come first and bring the sink in.
void ForwardPass::attend(std::size_t w, cudaStream_t stream) {
  keys.await(w, stream);
  const WaveWork& wave = state.setup.schedule.waves[w];
  const WaveCall& call = state.calls_of(inputs).waves[w];
  if (call.q_rows.empty()) return;
  ForwardArgs args{.q = rows_of(heads_of(inputs.q, wave.q_heads), call.q_rows),
                   .k = keys.k(w),
                   .v = keys.v(w),
                   .slices = {},
                   .out = rows_of(heads_of(sum.out, wave.q_heads), call.q_rows),
                   .lse = rows_of(heads_of(sum.lse, wave.q_heads), call.q_rows),
                   .is_merging = w > 0,
                   .params = inputs.params};
  if (w == 0) args.sink = inputs.sink;
  if (!sum.max_logits.empty()) {
    args.max_logits = sum.max_logits.slice(0, wave.q_heads.begin, wave.q_heads.end);
  }
  attention_forward_cuda(args, *call.forward, stream);
}

void ForwardPass::maximise_over_ranks(cudaStream_t stream) {
  const std::int32_t num_ranks = state.setup.communicator.num_ranks();
  const std::int64_t heads = sum.max_logits.shape[0];
  auto* own = static_cast<float*>(sum.max_logits.data);
  float* received = logits + num_ranks * heads;
  const std::vector<std::int64_t> bytes(static_cast<std::size_t>(num_ranks),
                                        heads * std::int64_t{sizeof(float)});
  repeat_device_floats(own, heads, num_ranks, logits, stream);
  state.setup.communicator.start_bytes({.send = logits,
                                        .receive = received,
                                        .send_bytes = bytes,
                                        .receive_bytes = bytes,
                                        .device = state.setup.device,
                                        .kind = ExchangeKind::Other,
                                        .tag = {.plan_digest = state.setup.plan.digest}},
                                       stream);
  max_device_floats(received, num_ranks, heads, own, stream);
}

}  // namespace

void forward_on_device(DeviceState& state, const AttentionInputs& inputs,
                       const AttentionResult& result, cudaStream_t stream) {
  const AttentionSchedule& schedule = state.setup.schedule;
  state.calls_of(inputs);  // made before anything is enqueued, as that may block
  ForwardPass pass(state, inputs, result);
  const DeviceCall call(state, pass.layout, stream);
  pass.place(call);
  pass.keys.start(call, stream);
  if (!result.max_logits.empty() && schedule.rows_q == 0) {
    fill_device_floats(static_cast<float*>(result.max_logits.data), result.max_logits.shape[0],
                       -std::numeric_limits<float>::infinity(), stream);
  }
  for (std::size_t w = 0; w < schedule.waves.size(); ++w) pass.attend(w, stream);
  if (pass.has_own_out) convert_device_rows(pass.sum.out, result.out, stream);
  if (!result.max_logits.empty() && state.setup.communicator.num_ranks() > 1) {
    pass.maximise_over_ranks(stream);
  }
}

}  // namespace magi
