// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "magi/runtime.hpp"
#include "runtime/attention_schedule.hpp"

namespace magi {

/// What the attention of one rank on one GPU works by; all outlive it.
struct DeviceSetup {
  const Plan& plan;
  const AttentionSchedule& schedule;
  const AttentionOptions& options;
  Communicator& communicator;
  std::int32_t device = 0;
};

/// DistributedAttention's calls on tensors of one GPU, after the checks that all devices share.
class DeviceAttention {
 public:
  virtual ~DeviceAttention() = default;
  virtual void forward(const AttentionInputs& inputs, const AttentionResult& result,
                       void* stream) = 0;
  virtual void backward(const AttentionInputs& inputs, const AttentionResult& result,
                        const OutputGradients& output_gradients,
                        const InputGradients& input_gradients, void* stream) = 0;
  virtual std::size_t workspace_bytes() const = 0;
};

/// Throws InvalidArgument where there is no such GPU, or the plan or the group does not suit one.
std::unique_ptr<DeviceAttention> make_device_attention(const DeviceSetup& setup);

}  // namespace magi
