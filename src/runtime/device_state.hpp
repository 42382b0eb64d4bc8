// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "cuda/order_event.hpp"
#include "cuda/stream.hpp"
#include "magi/attention_cuda.hpp"
#include "runtime/device_attention.hpp"
#include "runtime/device_memory.hpp"
#include "runtime/device_row_lists.hpp"

namespace magi {

/// One exchange of the plan on the device. The waves that share it differ in their heads alone.
struct ExchangeTables {
  ExchangeTables(const RowExchange& exchange, std::int32_t num_ranks);
  std::size_t size_bytes() const;

  comm::WireOrder owned, needed;  ///< without their tasks, which are on the device
  comm::DeviceTasks owned_tasks, needed_tasks;
  comm::DeviceSums sums;
};

/// The attention call of one wave, for one input type. Query rows that no slice shows anything are
/// cut off where the result is merged into an earlier one.
struct WaveCall {
  Range q_rows;
  std::vector<BandSlice> slices;  ///< query rows count from q_rows.begin
  std::shared_ptr<ForwardWork> forward;
};
struct WaveCalls {
  DType type;
  std::vector<WaveCall> waves;
};
/// The same backward, for one type of dout and one mode as well.
struct BackwardWorks {
  struct Key {
    DType type, dout_type;
    bool is_fast;
    friend bool operator==(const Key&, const Key&) = default;
  };
  Key key;
  std::vector<std::shared_ptr<BackwardWork>> waves;
};

/// What the attention of one rank keeps on one GPU between calls.
struct DeviceState {
  explicit DeviceState(const DeviceSetup& given);
  DeviceState(const DeviceState&) = delete;

  const ExchangeTables& tables_of(const WaveWork& wave) const {
    return tables[static_cast<std::size_t>(wave.exchange - setup.schedule.exchanges.data())];
  }
  /// Made at the first call with this type; blocks then.
  const WaveCalls& calls_of(const AttentionInputs& inputs);
  const BackwardWorks& backward_works_of(const AttentionInputs& inputs, const TensorView& dout);
  /// The first wave whose attention call has the same slices and shapes: theirs is one work list.
  std::size_t first_like(std::size_t wave) const;
  /// Multiprocessors that the attention of wave `wave` leaves to the transport.
  std::int32_t sm_margin(std::size_t wave) const;
  std::int32_t backward_sm_margin() const;
  std::size_t held_bytes() const;

  DeviceSetup setup;
  std::vector<ExchangeTables> tables;  ///< as schedule.exchanges
  comm::DeviceTasks own_rows;          ///< all own key rows, where they are gathered
  std::deque<WaveCalls> calls;
  std::deque<BackwardWorks> backward_works;
  std::size_t largest_call_bytes = 0;

  Stream transport;     ///< exchanges run here, beside the attention on the caller's stream
  OrderEvent ready;     ///< of the caller's stream: what is to be sent has been packed
  OrderEvent finished;  ///< of the caller's stream: end of the last call
  OrderEvent left;      ///< of the transport stream: end of the last call
  std::deque<OrderEvent> casts;  ///< of the transport stream, by wave: received
  std::deque<OrderEvent> reduces;
};

/// One call's order among streams and its memory: begins behind the call before, ends behind
/// whatever it gave the transport stream, also where it throws.
class DeviceCall {
 public:
  DeviceCall(DeviceState& state, const CallLayout& layout, cudaStream_t stream);
  ~DeviceCall();
  DeviceCall(const DeviceCall&) = delete;
  DeviceCall& operator=(const DeviceCall&) = delete;
  std::byte* at(std::size_t begin) const { return memory_->at(begin); }

 private:
  DeviceState& state_;
  cudaStream_t stream_;
  std::unique_ptr<CallMemory> memory_;
};

/// Two tensors [rows, heads, dim] of one buffer whose row is the first's heads, then the second's.
struct RowPair {
  TensorView first, second;
  std::int64_t row_bytes = 0;

  std::int64_t size_bytes() const { return first.shape[0] * row_bytes; }
  void place(std::byte* data);
  /// The buffer as [rows, elements].
  TensorView rows() const;
};
struct RowPairShape {
  DType dtype;
  std::int64_t rows, heads, dim_first, dim_second;
  std::int32_t device;
};
RowPair row_pair(const RowPairShape& shape);

/// k and v of the waves of one call: the caller's tensors, or buffers and the casts that fill them.
class DeviceKeys {
 public:
  DeviceKeys(DeviceState& state, const AttentionInputs& inputs, CallLayout& layout);
  /// Packs on `stream` and hands the exchanges to the transport stream.
  void start(const DeviceCall& call, cudaStream_t stream);
  /// `stream` goes on when wave `wave`'s rows are there and in order.
  void await(std::size_t wave, cudaStream_t stream);
  const TensorView& k(std::size_t wave) const { return waves_[wave].keys.first; }
  const TensorView& v(std::size_t wave) const { return waves_[wave].keys.second; }

 private:
  struct WaveKeys {
    RowPair keys;
    bool is_direct = false;  ///< received where it is read
    std::size_t send_at = 0, keys_at = 0, staging_at = 0;
    std::byte* send = nullptr;
    std::byte* staging = nullptr;
  };
  void pack(std::size_t wave, cudaStream_t stream);
  void send(std::size_t wave);

  DeviceState& state_;
  const AttentionInputs& inputs_;
  std::vector<WaveKeys> waves_;
};

/// The arguments of a wave's call that forward and backward share, without data in k and v.
struct WaveShape {
  TensorView q, k, v;
};
WaveShape wave_shape(const DeviceState& state, const AttentionInputs& inputs, std::size_t wave,
                     Range q_rows);

void forward_on_device(DeviceState& state, const AttentionInputs& inputs,
                       const AttentionResult& result, cudaStream_t stream);
void backward_on_device(DeviceState& state, const AttentionInputs& inputs,
                        const AttentionResult& result, const OutputGradients& output_gradients,
                        const InputGradients& input_gradients, cudaStream_t stream);

}  // namespace magi
