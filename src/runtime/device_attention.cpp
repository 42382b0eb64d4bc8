// SPDX-License-Identifier: Apache-2.0
#include "runtime/device_attention.hpp"

#include <string>

#include "base/check.hpp"
#include "cuda/capture.hpp"
#include "cuda/device.hpp"
#include "cuda/tensor_map.hpp"
#include "kernels/attention/backend.hpp"
#include "runtime/abort_group.hpp"
#include "runtime/device_state.hpp"

namespace magi {
namespace {

void check_setup(const DeviceSetup& setup) {
  const std::int32_t num_devices = device_count();
  if (setup.device >= num_devices) {
    throw invalid("q.device", setup.device,
                  "-1 (host memory) or one of the " + std::to_string(num_devices) + " GPUs here");
  }
  if (!setup.options.backend.empty() && setup.options.backend != "sm90") {
    throw invalid("options.backend", setup.options.backend, "sm90 for tensors on a GPU");
  }
  const AttentionLimits limits = attention_limits(setup.device);
  const PlanConfig& config = setup.plan.config;
  check_head_dim(limits.dim_qk, "plan.config.head_dim_qk", config.head_dim_qk, "on a GPU ");
  check_head_dim(limits.dim_v, "plan.config.head_dim_v", config.head_dim_v, "on a GPU ");
  const std::int32_t sms = setup.options.exchange_sms;
  const std::int32_t num_sms = device_info(setup.device).num_sms;
  if (sms < 0 || sms >= num_sms) {
    throw invalid("options.exchange_sms", sms, "0 to " + std::to_string(num_sms - 1));
  }
  if (setup.communicator.num_ranks() == 1 || setup.communicator.has_device_exchange()) return;
  throw invalid("communicator", std::string("a ") + setup.communicator.backend() + " group",
                "for tensors on a GPU a group that moves device memory");
}

void check_layouts(std::initializer_list<std::pair<const char*, const TensorView*>> tensors) {
  for (const auto& [name, tensor] : tensors) check_copyable(name, *tensor);
}

class CudaAttention final : public DeviceAttention {
 public:
  explicit CudaAttention(const DeviceSetup& setup) : state_(setup) {}

  void forward(const AttentionInputs& inputs, const AttentionResult& result,
               void* stream) override {
    check_layouts({{"q", &inputs.q}, {"k", &inputs.k}, {"v", &inputs.v}, {"out", &result.out}});
    check_call(inputs.params, stream);
    const DeviceScope scope(state_.setup.device);
    abort_group_on_error(state_.setup.communicator, [&] {
      forward_on_device(state_, inputs, result, static_cast<cudaStream_t>(stream));
    });
  }

  void backward(const AttentionInputs& inputs, const AttentionResult& result,
                const OutputGradients& output_gradients, const InputGradients& input_gradients,
                void* stream) override {
    check_layouts({{"q", &inputs.q},
                   {"k", &inputs.k},
                   {"v", &inputs.v},
                   {"out", &result.out},
                   {"dout", &output_gradients.dout},
                   {"dq", &input_gradients.dq},
                   {"dk", &input_gradients.dk},
                   {"dv", &input_gradients.dv}});
    check_call(inputs.params, stream);
    const DeviceScope scope(state_.setup.device);
    abort_group_on_error(state_.setup.communicator, [&] {
      backward_on_device(state_, inputs, result, output_gradients, input_gradients,
                         static_cast<cudaStream_t>(stream));
    });
  }

  std::size_t workspace_bytes() const override {
    return state_.held_bytes() + state_.largest_call_bytes;
  }

 private:
  /// What every rank is told alike before an exchange begins; an error after that aborts the group.
  void check_call(const AttentionParams& params, void* stream) const {
    check_options(attention_limits(state_.setup.device), params, {});
    if (state_.setup.communicator.num_ranks() > 1 &&
        graph_of_capture(static_cast<cudaStream_t>(stream)) != nullptr) {
      throw invalid("stream", "being captured", "one that is not, for attention over ranks");
    }
  }

  DeviceState state_;
};

}  // namespace

std::unique_ptr<DeviceAttention> make_device_attention(const DeviceSetup& setup) {
  check_setup(setup);
  const DeviceScope scope(setup.device);
  return std::make_unique<CudaAttention>(setup);
}

}  // namespace magi
