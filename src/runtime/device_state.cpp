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
    : owned(comm::wire_order(exchange.owned, num_ranks)),
      needed(comm::wire_order(exchange.needed, num_ranks)),
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
  own_rows = comm::DeviceTasks(comm::wire_order({&all, 1}, 1).tasks);
}

std::int32_t DeviceState::sm_margin(std::size_t wave) const {
  const std::vector<WaveWork>& waves = setup.schedule.waves;
  const bool is_exchanging =
      std::any_of(waves.begin() + static_cast<std::ptrdiff_t>(wave) + 1, waves.end(),
                  [](const WaveWork& later) { return later.is_exchanged; });
  return is_exchanging ? setup.options.exchange_sms : 0;
}

const WaveCalls& DeviceState::calls_of(const AttentionInputs& inputs) {
  for (const WaveCalls& known : calls) {
    if (known.type == inputs.q.dtype) return known;
  }
  const AttentionSchedule& schedule = setup.schedule;
  WaveCalls made{.type = inputs.q.dtype, .waves = {}};
  for (std::size_t w = 0; w < schedule.waves.size(); ++w) {
    const WaveWork& wave = schedule.waves[w];
    WaveCall call = cut_wave(schedule, w);
    const auto is_like = [&](std::size_t other) {
      const WaveWork& earlier = schedule.waves[other];
      return other > 0 && earlier.slices.data() == wave.slices.data() &&
             earlier.slices.size() == wave.slices.size() && earlier.is_own == wave.is_own &&
             earlier.buffer_rows == wave.buffer_rows &&
             earlier.kv_heads.size() == wave.kv_heads.size() && sm_margin(other) == sm_margin(w);
    };
    for (std::size_t other = 0; other < w && call.forward == nullptr; ++other) {
      if (is_like(other)) call.forward = made.waves[other].forward;
    }
    if (call.forward == nullptr && !call.q_rows.empty()) {
      const RowPair keys =
          row_pair({.dtype = inputs.k.dtype,
                    .rows = wave.is_own ? schedule.rows_k : wave.buffer_rows.size(),
                    .heads = wave.kv_heads.size(),
                    .dim_first = inputs.k.shape[2],
                    .dim_second = inputs.v.shape[2],
                    .device = setup.device});
      const ForwardArgs args{.q = rows_of(heads_of(inputs.q, wave.q_heads), call.q_rows),
                             .k = keys.first,
                             .v = keys.second,
                             .slices = call.slices};
      call.forward = std::make_shared<ForwardWork>(args, ForwardTuning{.sm_margin = sm_margin(w)});
    }
    made.waves.push_back(std::move(call));
  }
  return calls.emplace_back(std::move(made));
}

std::size_t DeviceState::held_bytes() const {
  std::size_t total = own_rows.tasks.size_bytes();
  for (const ExchangeTables& table : tables) total += table.size_bytes();
  std::vector<const ForwardWork*> counted;
  for (const WaveCalls& type : calls) {
    for (const WaveCall& call : type.waves) {
      if (call.forward == nullptr || std::ranges::count(counted, call.forward.get()) > 0) continue;
      counted.push_back(call.forward.get());
      total += static_cast<std::size_t>(call.forward->size_bytes());
    }
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
