// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "runtime/attention_state.hpp"
#include "runtime/device_elements.hpp"
#include "runtime/device_state.hpp"

namespace magi {
namespace {

/// A gradient and where its parts are summed before they reach the caller's tensor: there, if that
/// is float32 or nothing is added.
struct GradientSum {
  GradientSum(const TensorView& given, bool is_added, CallLayout& layout)
      : target(given), sum(given), is_own(is_added && given.dtype != DType::Float32) {
    if (!is_own) return;
    sum =
        contiguous_view(nullptr, DType::Float32, {given.shape[0], given.shape[1], given.shape[2]});
    sum.device = given.device;
    sum_at = layout.add(sum.num_elements() * std::int64_t{sizeof(float)});
  }
  void place(const DeviceCall& call) {
    if (is_own) sum.data = call.at(sum_at);
  }
  void store(cudaStream_t stream) const {
    if (sum.data != target.data) convert_device_rows(sum, target, stream);
  }

  TensorView target, sum;
  bool is_own;
  std::size_t sum_at = 0;
};

/// Partial dk and dv of the rows that a wave received, and their way to the owners.
struct WavePartials {
  RowPair partials;        ///< float32
  bool is_direct = false;  ///< sent from where they are
  std::size_t partials_at = 0, send_at = 0, received_at = 0;
  std::byte* send = nullptr;
  std::byte* received = nullptr;
};

/// Everything one backward call works on.
struct BackwardPass {
  BackwardPass(DeviceState& given_state, const AttentionInputs& given_inputs,
               const AttentionResult& given_result, const OutputGradients& given_output_gradients,
               const InputGradients& given_input_gradients);
  void place(const DeviceCall& call);
  void attend(std::size_t wave, cudaStream_t stream);
  void send_partials(std::size_t wave, cudaStream_t stream);
  void add_partials(std::size_t wave, cudaStream_t stream);
  void store(cudaStream_t stream) const;

  const WaveWork& wave_of(std::size_t w) const { return state.setup.schedule.waves[w]; }
  TensorView dk_of(std::size_t w) const;
  TensorView dv_of(std::size_t w) const;
  void clear(std::size_t wave, cudaStream_t stream) const;

  DeviceState& state;
  const AttentionInputs& inputs;
  const AttentionResult& result;
  const OutputGradients& output_gradients;
  const InputGradients& input_gradients;
  CallLayout layout;
  DeviceKeys keys;
  const WaveCalls& calls;
  const BackwardWorks& works;
  GradientSum dq, dk, dv;
  std::vector<WavePartials> waves;
  DeviceWorkspace workspace;
  std::size_t workspace_at = 0;
};

/// Whether partials are added to the caller's dk and dv; gathered keys have sums of their own.
bool has_key_sums(const AttentionSchedule& schedule) {
  return !schedule.is_gathered && std::ranges::any_of(schedule.waves, &WaveWork::is_exchanged);
}

BackwardPass::BackwardPass(DeviceState& given_state, const AttentionInputs& given_inputs,
                           const AttentionResult& given_result,
                           const OutputGradients& given_output_gradients,
                           const InputGradients& given_input_gradients)
    : state(given_state),
      inputs(given_inputs),
      result(given_result),
      output_gradients(given_output_gradients),
      input_gradients(given_input_gradients),
      keys(state, given_inputs, layout),
      calls(state.calls_of(given_inputs)),
      works(state.backward_works_of(given_inputs, given_output_gradients.dout)),
      dq(given_input_gradients.dq, state.setup.schedule.num_calls > 1, layout),
      dk(given_input_gradients.dk, has_key_sums(state.setup.schedule), layout),
      dv(given_input_gradients.dv, has_key_sums(state.setup.schedule), layout),
      waves(state.setup.schedule.waves.size()) {
  for (std::size_t w = 0; w < waves.size(); ++w) {
    const WaveWork& wave = wave_of(w);
    WavePartials& part = waves[w];
    part.partials = row_pair({.dtype = DType::Float32,
                              .rows = wave.is_own ? 0 : wave.buffer_rows.size(),
                              .heads = wave.kv_heads.size(),
                              .dim_first = inputs.k.shape[2],
                              .dim_second = inputs.v.shape[2],
                              .device = inputs.k.device});
    part.partials_at = layout.add(part.partials.size_bytes());
    if (works.waves[w] != nullptr) {
      workspace.size_bytes = std::max(workspace.size_bytes, works.waves[w]->workspace_bytes());
    }
    if (!wave.is_exchanged) continue;
    const ExchangeTables& tables = state.tables_of(wave);
    part.is_direct = tables.needed.shift.has_value();
    part.send_at =
        layout.add(part.is_direct ? 0 : tables.needed.num_rows * part.partials.row_bytes);
    part.received_at = layout.add(tables.owned.num_rows * part.partials.row_bytes);
  }
  workspace_at = layout.add(workspace.size_bytes);
}

void BackwardPass::place(const DeviceCall& call) {
  for (GradientSum* gradient : {&dq, &dk, &dv}) gradient->place(call);
  for (std::size_t w = 0; w < waves.size(); ++w) {
    WavePartials& part = waves[w];
    part.partials.place(call.at(part.partials_at));
    part.send = call.at(part.send_at);
    part.received = call.at(part.received_at);
    if (!part.is_direct) continue;
    part.send = call.at(part.partials_at) +
                *state.tables_of(wave_of(w)).needed.shift * part.partials.row_bytes;
  }
  workspace.data = call.at(workspace_at);
  if (!state.setup.schedule.is_gathered) return;
  // The buffer begins with the own rows: their part of the sum is already in place.
  const Range own{0, state.setup.schedule.rows_k};
  dk.sum = rows_of(waves[0].partials.first, own);
  dv.sum = rows_of(waves[0].partials.second, own);
}

TensorView BackwardPass::dk_of(std::size_t w) const {
  return wave_of(w).is_own ? heads_of(dk.sum, wave_of(w).kv_heads) : waves[w].partials.first;
}

TensorView BackwardPass::dv_of(std::size_t w) const {
  return wave_of(w).is_own ? heads_of(dv.sum, wave_of(w).kv_heads) : waves[w].partials.second;
}

/// dk and dv of the wave = 0.
void BackwardPass::clear(std::size_t w, cudaStream_t stream) const {
  const auto clear_rows = [&](const TensorView& tensor) {
    if (tensor.num_elements() == 0) return;
    const std::size_t element = dtype_bytes(tensor.dtype);
    for (std::int64_t head = 0; head < tensor.shape[1]; ++head) {
      const TensorView part = tensor.slice(1, head, head + 1);
      cuda_check(cudaMemset2DAsync(part.data, static_cast<std::size_t>(part.stride[0]) * element, 0,
                                   static_cast<std::size_t>(part.shape[2]) * element,
                                   static_cast<std::size_t>(part.shape[0]), stream),
                 "cudaMemset2DAsync");
    }
  };
  if (wave_of(w).is_own) {
    clear_rows(dk_of(w));
    clear_rows(dv_of(w));
  } else if (const RowPair& part = waves[w].partials; part.size_bytes() > 0) {
    cuda_check(
        cudaMemsetAsync(part.first.data, 0, static_cast<std::size_t>(part.size_bytes()), stream),
        "cudaMemsetAsync");
  }
}

void BackwardPass::attend(std::size_t w, cudaStream_t stream) {
  keys.await(w, stream);
  const bool is_first = w == 0;
  const TensorView& dsink = input_gradients.dsink;
  const Range rows = calls.waves[w].q_rows;
  if (rows.empty()) {
    clear(w, stream);
    if (is_first && !dsink.empty() && dsink.num_elements() > 0) {
      fill_device_floats(static_cast<float*>(dsink.data), dsink.num_elements(), 0.0f, stream);
    }
    return;
  }
  const Range heads = wave_of(w).q_heads;
  const auto part = [&](const TensorView& tensor) {
    return rows_of(heads_of(tensor, heads), rows);
  };
  BackwardArgs args{.q = part(inputs.q),
                    .k = keys.k(w),
                    .v = keys.v(w),
                    .slices = {},
                    .out = part(result.out),
                    .lse = part(result.lse),
                    .dout = part(output_gradients.dout),
                    .dq = part(dq.sum),
                    .dk = dk_of(w),
                    .dv = dv_of(w),
                    .is_accumulating = !is_first,
                    .is_writing_keys = true,
                    .params = inputs.params};
  if (!output_gradients.dlse.empty()) args.dlse = part(output_gradients.dlse);
  if (is_first && !dsink.empty()) {
    args.sink = inputs.sink;
    args.dsink = dsink;
  }
  attention_backward_cuda(args, *works.waves[w], workspace, stream);
}

void BackwardPass::send_partials(std::size_t w, cudaStream_t stream) {
  if (!wave_of(w).is_exchanged) return;
  const ExchangeTables& tables = state.tables_of(wave_of(w));
  const WavePartials& part = waves[w];
  const cudaStream_t transport = state.transport.handle();
  if (!part.is_direct) {
    const TensorView rows = part.partials.rows();
    comm::rows_to_wire({&rows, 1}, part.send, tables.needed_tasks, stream);
  }
  state.ready.record(stream);
  state.ready.await(transport);
  const auto send_bytes = tables.needed.peer_bytes(part.partials.row_bytes);
  const auto receive_bytes = tables.owned.peer_bytes(part.partials.row_bytes);
  state.setup.communicator.start_bytes(
      {.send = part.send,
       .receive = part.received,
       .send_bytes = send_bytes,
       .receive_bytes = receive_bytes,
       .device = state.setup.device,
       .kind = ExchangeKind::Sum,
       .tag = {.plan_digest = state.setup.plan.digest, .stage = static_cast<std::int32_t>(w)}},
      transport);
  state.reduces[w].record(transport);
}

void BackwardPass::add_partials(std::size_t w, cudaStream_t stream) {
  if (!wave_of(w).is_exchanged) return;
  state.reduces[w].await(stream);
  const TensorView sums[] = {heads_of(dk.sum, wave_of(w).kv_heads),
                             heads_of(dv.sum, wave_of(w).kv_heads)};
  comm::add_rows_from_wire(sums, waves[w].received, DType::Float32,
                           state.tables_of(wave_of(w)).sums, stream);
}

void BackwardPass::store(cudaStream_t stream) const {
  for (const GradientSum* gradient : {&dq, &dk, &dv}) gradient->store(stream);
}

}  // namespace

void backward_on_device(DeviceState& state, const AttentionInputs& inputs,
                        const AttentionResult& result, const OutputGradients& output_gradients,
                        const InputGradients& input_gradients, cudaStream_t stream) {
  BackwardPass pass(state, inputs, result, output_gradients, input_gradients);
  const DeviceCall call(state, pass.layout, stream);
  pass.place(call);
  pass.keys.start(call, stream);
  const std::size_t num_waves = state.setup.schedule.waves.size();
  for (std::size_t w = 0; w < num_waves; ++w) {
    pass.attend(w, stream);
    pass.send_partials(w, stream);
  }
  // Owners add in the order: own, then rank order, wave by wave.
  for (std::size_t w = 0; w < num_waves; ++w) pass.add_partials(w, stream);
  pass.store(stream);
}

}  // namespace magi
