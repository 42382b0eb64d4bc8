// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "magi/runtime.hpp"
#include "runtime/attention_schedule.hpp"
#include "runtime/buffer.hpp"
#include "runtime/device_attention.hpp"

namespace magi {

/// What a rank keeps between calls.
struct AttentionState {
  std::shared_ptr<const Plan> plan;
  Communicator* communicator = nullptr;
  std::int32_t rank = 0;
  AttentionSchedule schedule;
  AttentionOptions options;

  std::map<std::int32_t, std::unique_ptr<DeviceAttention>> devices;  ///< those used so far

  Buffer received_k, received_v;
  Buffer out;                     ///< accumulator where the caller's out is a 16-bit type
  Buffer dq, dk, dv;              ///< accumulators where the caller's are 16-bit types
  Buffer partial_dk, partial_dv;  ///< gradients of received rows

  std::size_t workspace_bytes() const;
  /// Made at the first call on the device.
  DeviceAttention& on_device(std::int32_t device);
};

/// Throws InvalidArgument unless the tensors fit the plan on this rank.
void check_forward(const AttentionSchedule& schedule, const PlanConfig& config,
                   const AttentionInputs& inputs, const AttentionResult& result);
void check_backward(const AttentionSchedule& schedule, const PlanConfig& config,
                    const AttentionInputs& inputs, const AttentionResult& result,
                    const OutputGradients& output_gradients, const InputGradients& input_gradients);

/// k and v as the waves of one call see them: the caller's tensors and the receive buffers, with
/// the casts that fill these under way.
class CastedKeys {
 public:
  /// Starts the casts of all waves.
  CastedKeys(AttentionState& state, const AttentionInputs& inputs);

  /// Blocks until wave `wave`'s rows are there.
  void wait_sync(std::size_t wave);
  TensorView k(const WaveWork& wave) const { return select(wave, k_, received_k_); }
  TensorView v(const WaveWork& wave) const { return select(wave, v_, received_v_); }

 private:
  static TensorView select(const WaveWork& wave, const TensorView& own, const TensorView& received);

  const AttentionSchedule& schedule_;
  TensorView k_, v_;
  TensorView received_k_, received_v_;
  std::vector<std::unique_ptr<PendingExchange>> pending_;
};

inline TensorView heads_of(const TensorView& tensor, Range heads) {
  return tensor.slice(1, heads.begin, heads.end);
}
inline TensorView rows_of(const TensorView& tensor, Range rows) {
  return tensor.slice(0, rows.begin, rows.end);
}

}  // namespace magi
