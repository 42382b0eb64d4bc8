// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/built_in.hpp"
#include "kernels/cpu/check_args.hpp"

namespace magi {
namespace {

/// The slices of a problem; the kernels check and run the rest call by call.
template <typename Interface, typename Args, void (*kAttention)(const Args&)>
class PreparedOnCpu final : public Interface {
 public:
  explicit PreparedOnCpu(std::span<const BandSlice> slices)
      : slices_(slices.begin(), slices.end()) {}

  std::int64_t size_bytes() const override {
    return static_cast<std::int64_t>(slices_.size() * sizeof(BandSlice));
  }
  std::int64_t workspace_bytes() const override { return 0; }
  void run(const Args& args, const DeviceWorkspace& /*workspace*/,
           void* /*stream*/) const override {
    Args call = args;
    call.slices = slices_;
    kAttention(call);
  }

 private:
  std::vector<BandSlice> slices_;
};

class CpuBackend final : public AttentionBackend {
 public:
  const std::string& name() const override { return name_; }
  const AttentionLimits& limits() const override { return cpu::kLimits; }
  bool serves(std::int32_t device) const override { return device == kCpuDevice; }

  std::shared_ptr<const PreparedForward> prepare_forward(
      const ForwardArgs& args, const ForwardTuning& /*tuning*/) const override {
    return std::make_shared<PreparedOnCpu<PreparedForward, ForwardArgs, attention_forward_cpu>>(
        args.slices);
  }
  std::shared_ptr<const PreparedBackward> prepare_backward(
      const BackwardArgs& args, const BackwardTuning& /*tuning*/) const override {
    return std::make_shared<PreparedOnCpu<PreparedBackward, BackwardArgs, attention_backward_cpu>>(
        args.slices);
  }

 private:
  std::string name_ = "cpu";
};

}  // namespace

const std::shared_ptr<const AttentionBackend>& cpu_backend() {
  static const std::shared_ptr<const AttentionBackend> backend =
      std::make_shared<const CpuBackend>();
  return backend;
}

}  // namespace magi
