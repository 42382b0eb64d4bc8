// SPDX-License-Identifier: Apache-2.0
#include "runtime/device_state.hpp"

#include <algorithm>
#include <array>

#include "runtime/attention_state.hpp"

namespace magi {
namespace {

/// The wire order's tasks leave the host once the device has them.
comm::DeviceTasks take_tasks(comm::WireOrder& order) {
  comm::DeviceTasks tasks(order.tasks);
  order.tasks = {};
  return tasks;
}

Range seen_rows(std::span<const BandSlice> slices) {
  Range rows{kMaxRows, 0};
  for (const BandSlice& slice : slices) {
    const BandSlice tight = shrink(slice);
    if (tight.q0 == tight.q1) continue;
    rows = {std::min(rows.begin, tight.q0), std::max(rows.end, tight.q1)};
  }
  return rows.empty() ? Range{} : rows;
}

/// Wave 0 writes all rows, later ones merge into those that they see keys for.
WaveCall cut_wave(const AttentionSchedule& schedule, std::size_t wave) {
  const std::span<const BandSlice> slices = schedule.waves[wave].slices;
  WaveCall call{.q_rows = wave == 0 ? Range{0, schedule.rows_q} : seen_rows(slices)};
  for (const BandSlice& slice : slices) {
    const BandSlice cut = cut_q(slice, call.q_rows);
    if (cut.q0 < cut.q1) call.slices.push_back(shift(cut, -call.q_rows.begin, 0));
  }
  return call;
}

}  // namespace

ExchangeTables::ExchangeTables(const RowExchange& exchange, std::int32_t num_ranks)
    : owned(comm::wire_order(exchange.owned, -1, num_ranks)),
      needed(comm::wire_order(exchange.needed, -1, num_ranks)),
      sums(comm::sum_table(owned)) {
  owned_tasks = take_tasks(owned);
  needed_tasks = take_tasks(needed);
}

std::size_t ExchangeTables::size_bytes() const {
  return owned_tasks.tasks.size_bytes() + needed_tasks.tasks.size_bytes() +
         sums.tasks.size_bytes() + sums.parts.size_bytes();
}

DeviceState::DeviceState(const DeviceSetup& given)
    : setup(given), casts(given.schedule.waves.size()), reduces(given.schedule.waves.size()) {
  for (const RowExchange& exchange : setup.schedule.exchanges) {
    tables.emplace_back(exchange, setup.plan.config.num_ranks);
  }
  if (!setup.schedule.is_gathered) return;
  const PeerRows all{.num_rows = setup.schedule.rows_k};
  own_rows = comm::DeviceTasks(comm::wire_order({&all, 1}, -1, 1).tasks);
}

std::int32_t DeviceState::sm_margin(std::size_t wave) const {
  const std::vector<WaveWork>& waves = setup.schedule.waves;
  const bool is_exchanging =
      std::any_of(waves.begin() + static_cast<std::ptrdiff_t>(wave) + 1, waves.end(),
                  [](const WaveWork& later) { return later.is_exchanged; });
  return is_exchanging ? setup.options.exchange_sms : 0;
}

std::int32_t DeviceState::backward_sm_margin() const {
  // Partial gradients are on their way as soon as a wave has ended, keys until all have come.
  const std::vector<WaveWork>& waves = setup.schedule.waves;
  const bool is_exchanging = std::ranges::any_of(waves, &WaveWork::is_exchanged);
  return is_exchanging && waves.size() > 1 ? setup.options.exchange_sms : 0;
}

std::size_t DeviceState::first_like(std::size_t w) const {
  const WaveWork& wave = setup.schedule.waves[w];
  for (std::size_t other = 1; other < w; ++other) {
    const WaveWork& earlier = setup.schedule.waves[other];
    const bool is_like = earlier.slices.data() == wave.slices.data() &&
                         earlier.slices.size() == wave.slices.size() &&
                         earlier.is_own == wave.is_own && earlier.buffer_rows == wave.buffer_rows &&
                         earlier.kv_heads.size() == wave.kv_heads.size() &&
                         sm_margin(other) == sm_margin(w);
    if (is_like) return other;
  }
  return w;
}

WaveShape wave_shape(const DeviceState& state, const AttentionInputs& inputs, std::size_t w,
                     Range q_rows) {
  const AttentionSchedule& schedule = state.setup.schedule;
  const WaveWork& wave = schedule.waves[w];
  const RowPair keys = row_pair({.dtype = inputs.k.dtype,
                                 .rows = wave.is_own ? schedule.rows_k : wave.buffer_rows.size(),
                                 .heads = wave.kv_heads.size(),
                                 .dim_first = inputs.k.shape[2],
                                 .dim_second = inputs.v.shape[2],
                                 .device = state.setup.device});
  return {rows_of(heads_of(inputs.q, wave.q_heads), q_rows), keys.first, keys.second};
}

const WaveCalls& DeviceState::calls_of(const AttentionInputs& inputs) {
  for (const WaveCalls& known : calls) {
    if (known.type == inputs.q.dtype) return known;
  }
  WaveCalls made{.type = inputs.q.dtype, .waves = {}};
  for (std::size_t w = 0; w < setup.schedule.waves.size(); ++w) {
    WaveCall call = cut_wave(setup.schedule, w);
    if (const std::size_t like = first_like(w); like < w) {
      call.forward = made.waves[like].forward;
    } else if (!call.q_rows.empty()) {
      const WaveShape shape = wave_shape(*this, inputs, w, call.q_rows);
      const ForwardArgs args{.q = shape.q, .k = shape.k, .v = shape.v, .slices = call.slices};
      call.forward = std::make_shared<ForwardWork>(args, ForwardTuning{.sm_margin = sm_margin(w)});
    }
    made.waves.push_back(std::move(call));
  }
  return calls.emplace_back(std::move(made));
}

const BackwardWorks& DeviceState::backward_works_of(const AttentionInputs& inputs,
                                                    const TensorView& dout) {
  const BackwardWorks::Key key{inputs.q.dtype, dout.dtype, inputs.is_fast_backward};
  for (const BackwardWorks& known : backward_works) {
    if (known.key == key) return known;
  }
  const WaveCalls& shared = calls_of(inputs);
  BackwardWorks made{.key = key, .waves = {}};
  for (std::size_t w = 0; w < shared.waves.size(); ++w) {
    const WaveCall& call = shared.waves[w];
    std::shared_ptr<BackwardWork> work;
    if (const std::size_t like = first_like(w); like < w) {
      work = made.waves[like];
    } else if (!call.q_rows.empty()) {
      const WaveShape shape = wave_shape(*this, inputs, w, call.q_rows);
      const TensorView dout_rows =
          rows_of(heads_of(dout, setup.schedule.waves[w].q_heads), call.q_rows);
      BackwardArgs args{.q = shape.q, .k = shape.k, .v = shape.v, .slices = call.slices};
      args.dout = dout_rows;
      const BackwardTuning tuning{.sm_margin = backward_sm_margin(),
                                  .is_deterministic = !inputs.is_fast_backward};
      work = std::make_shared<BackwardWork>(args, tuning);
    }
    made.waves.push_back(std::move(work));
  }
  return backward_works.emplace_back(std::move(made));
}

/// Bytes of the different works among those of the waves.
template <typename Works, typename Get>
std::size_t work_bytes(const Works& waves, Get get) {
  std::size_t total = 0;
  for (std::size_t w = 0; w < waves.size(); ++w) {
    const auto& work = get(waves[w]);
    const auto is_same = [&](const auto& earlier) { return get(earlier) == work; };
    const auto end = waves.begin() + static_cast<std::ptrdiff_t>(w);
    if (work == nullptr || std::any_of(waves.begin(), end, is_same)) continue;
    total += static_cast<std::size_t>(work->size_bytes());
  }
  return total;
}

std::size_t DeviceState::held_bytes() const {
  std::size_t total = own_rows.tasks.size_bytes();
  for (const ExchangeTables& table : tables) total += table.size_bytes();
  for (const WaveCalls& type : calls) {
    total += work_bytes(type.waves, [](const WaveCall& call) { return call.forward; });
  }
  for (const BackwardWorks& type : backward_works) {
    total += work_bytes(type.waves, [](const auto& work) { return work; });
  }
  return total;
}

DeviceCall::DeviceCall(DeviceState& state, const CallLayout& layout, cudaStream_t stream)
    : state_(state), stream_(stream) {
  state.finished.await(stream);
  memory_ = std::make_unique<CallMemory>(state.setup.options.allocator, layout.total_bytes(),
                                         state.setup.device, stream);
  state.largest_call_bytes = std::max(state.largest_call_bytes, layout.total_bytes());
}

DeviceCall::~DeviceCall() {
  try {
    if (state_.setup.communicator.num_ranks() > 1) {
      state_.left.record(state_.transport.handle());
      state_.left.await(stream_);
    }
    memory_.reset();
    state_.finished.record(stream_);
  } catch (const CudaError&) {
    // The device has failed: every later call says so.
    static_cast<void>(cudaGetLastError());
  }
}

}  // namespace magi
