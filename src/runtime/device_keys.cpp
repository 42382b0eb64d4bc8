// SPDX-License-Identifier: Apache-2.0
#include "runtime/attention_state.hpp"
#include "runtime/device_state.hpp"

namespace magi {

RowPair row_pair(const RowPairShape& shape) {
  const auto element = static_cast<std::int64_t>(dtype_bytes(shape.dtype));
  const std::int64_t row_elements = shape.heads * (shape.dim_first + shape.dim_second);
  RowPair pair;
  pair.first = contiguous_view(nullptr, shape.dtype, {shape.rows, shape.heads, shape.dim_first});
  pair.second = contiguous_view(nullptr, shape.dtype, {shape.rows, shape.heads, shape.dim_second});
  for (TensorView* tensor : {&pair.first, &pair.second}) {
    tensor->device = shape.device;
    tensor->stride[0] = row_elements;
  }
  pair.row_bytes = row_elements * element;
  return pair;
}

void RowPair::place(std::byte* data) {
  first.data = data;
  second.data =
      data + first.shape[1] * first.shape[2] * static_cast<std::int64_t>(dtype_bytes(first.dtype));
}

TensorView RowPair::rows() const {
  const auto element = static_cast<std::int64_t>(dtype_bytes(first.dtype));
  TensorView view = contiguous_view(first.data, first.dtype, {first.shape[0], row_bytes / element});
  view.device = first.device;
  return view;
}

DeviceKeys::DeviceKeys(DeviceState& state, const AttentionInputs& inputs, CallLayout& layout)
    : state_(state), inputs_(inputs), waves_(state.setup.schedule.waves.size()) {
  for (std::size_t w = 0; w < waves_.size(); ++w) {
    const WaveWork& wave = state.setup.schedule.waves[w];
    WaveKeys& keys = waves_[w];
    keys.keys = row_pair({.dtype = inputs.k.dtype,
                          .rows = wave.is_own ? 0 : wave.buffer_rows.size(),
                          .heads = wave.kv_heads.size(),
                          .dim_first = inputs.k.shape[2],
                          .dim_second = inputs.v.shape[2],
                          .device = inputs.k.device});
    keys.keys_at = layout.add(keys.keys.size_bytes());
    if (!wave.is_exchanged) continue;
    const ExchangeTables& tables = state.tables_of(wave);
    keys.is_direct = tables.needed.shift.has_value();
    keys.send_at = layout.add(tables.owned.num_rows * keys.keys.row_bytes);
    keys.staging_at = layout.add(keys.is_direct ? 0 : tables.needed.num_rows * keys.keys.row_bytes);
  }
}

void DeviceKeys::start(const DeviceCall& call, cudaStream_t stream) {
  const std::vector<WaveWork>& waves = state_.setup.schedule.waves;
  bool is_sending = false;
  for (std::size_t w = 0; w < waves_.size(); ++w) {
    WaveKeys& keys = waves_[w];
    keys.keys.place(call.at(keys.keys_at));
    keys.send = call.at(keys.send_at);
    keys.staging = call.at(keys.staging_at);
    if (keys.is_direct) {
      keys.staging =
          call.at(keys.keys_at) + *state_.tables_of(waves[w]).needed.shift * keys.keys.row_bytes;
    }
    pack(w, stream);
    is_sending = is_sending || waves[w].is_exchanged;
    if (!waves[w].is_own) continue;
    keys.keys.first = heads_of(inputs_.k, waves[w].kv_heads);
    keys.keys.second = heads_of(inputs_.v, waves[w].kv_heads);
  }
  if (!is_sending) return;
  state_.ready.record(stream);
  state_.ready.await(state_.transport.handle());
  for (std::size_t w = 0; w < waves_.size(); ++w) {
    if (waves[w].is_exchanged) send(w);
  }
}

void DeviceKeys::pack(std::size_t w, cudaStream_t stream) {
  const WaveWork& wave = state_.setup.schedule.waves[w];
  const WaveKeys& keys = waves_[w];
  const TensorView sources[] = {heads_of(inputs_.k, wave.kv_heads),
                                heads_of(inputs_.v, wave.kv_heads)};
  if (wave.is_exchanged) {
    comm::rows_to_wire(sources, keys.send, state_.tables_of(wave).owned_tasks, stream);
  }
  // The buffer begins with the own rows: a wire order of its own.
  if (w == 0 && state_.setup.schedule.is_gathered) {
    comm::rows_to_wire(sources, keys.keys.first.data, state_.own_rows, stream);
  }
}

void DeviceKeys::send(std::size_t w) {
  const ExchangeTables& tables = state_.tables_of(state_.setup.schedule.waves[w]);
  const WaveKeys& keys = waves_[w];
  const cudaStream_t transport = state_.transport.handle();
  const auto send_bytes = tables.owned.peer_bytes(keys.keys.row_bytes);
  const auto receive_bytes = tables.needed.peer_bytes(keys.keys.row_bytes);
  state_.setup.communicator.start_bytes(
      {.send = keys.send,
       .receive = keys.staging,
       .send_bytes = send_bytes,
       .receive_bytes = receive_bytes,
       .device = state_.setup.device,
       .kind = ExchangeKind::Cast,
       .tag = {.plan_digest = state_.setup.plan.digest, .stage = static_cast<std::int32_t>(w)}},
      transport);
  state_.casts[w].record(transport);
}

void DeviceKeys::await(std::size_t w, cudaStream_t stream) {
  const WaveWork& wave = state_.setup.schedule.waves[w];
  if (!wave.is_exchanged) return;
  state_.casts[w].await(stream);
  if (waves_[w].is_direct) return;
  const TensorView target = waves_[w].keys.rows();
  comm::rows_from_wire({&target, 1}, waves_[w].staging, state_.tables_of(wave).needed_tasks,
                       stream);
}

}  // namespace magi
