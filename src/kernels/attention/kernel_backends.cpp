// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "base/check.hpp"
#include "base/env.hpp"
#include "cuda/device.hpp"
#include "kernels/attention/built_in.hpp"
#include "kernels/attention/device_runs.hpp"
#include "kernels/attention/kernel_family.hpp"
#include "kernels/mma/launch.hpp"
#include "kernels/sm90/backward/backward.hpp"
#include "kernels/sm90/forward/forward.hpp"

namespace magi {
namespace {

bool is_device(std::int32_t device) { return device >= 0 && device < device_count(); }

/// The limits for calls of one direction, up to the largest dims for which there are kernels of it.
template <typename Instances>
AttentionLimits limits_of(const Instances& instances) {
  constexpr std::int32_t kUnit = 8;  // rows of dim are copied in 16 bytes
  HeadDims dim_qk{.min = kUnit, .max = 0, .multiple = kUnit};
  HeadDims dim_v = dim_qk;
  for (const auto& instance : instances) {
    dim_qk.max = std::max(dim_qk.max, instance.config.dim_qk);
    dim_v.max = std::max(dim_v.max, instance.config.dim_v);
  }
  return {.dim_qk = dim_qk,
          .dim_v = dim_v,
          .types = types_of({DType::Float16, DType::BFloat16}),
          .stride_bytes = 16,
          .has_float_outputs = true,
          .has_sink = true,
          .has_softcap = true,
          .has_max_logits = true,
          .has_dlse = true};
}

class KernelForward final : public DeviceForward {
 public:
  KernelForward(const KernelFamily& family, const ForwardArgs& args, const ForwardTuning& tuning,
                const InFlightKeys* coming)
      : DeviceForward(family.limits, args, coming),
        state_(sm90::make_forward(sm90::find_instances(family.forward, args),
                                  sm90::forward_problem(args), args.slices, tuning,
                                  coming == nullptr ? InFlightKeys{} : *coming)) {}

  std::int64_t size_bytes() const override { return state_.size_bytes(); }
  std::int64_t workspace_bytes() const override { return state_.workspace_bytes(); }
  ForwardTiling tiling() const override {
    return {state_.list.packed_heads, static_cast<std::int32_t>(state_.num_splits())};
  }

 protected:
  void enqueue(const ForwardArgs& args, const RunMemory& memory,
               cudaStream_t stream) const override {
    sm90::enqueue_forward(args, state_, memory, stream);
  }
  std::unique_ptr<InFlightForward> begin(const ForwardArgs& args, RunMemory memory,
                                         const KeyArrivals& arrivals,
                                         cudaStream_t stream) const override {
    return std::make_unique<sm90::ForwardRun>(args, state_, std::move(memory), arrivals, stream);
  }

 private:
  sm90::ForwardState state_;
};

class KernelBackward final : public DeviceBackward {
 public:
  KernelBackward(const KernelFamily& family, const BackwardArgs& args, const BackwardTuning& tuning,
                 const InFlightKeys* coming)
      : DeviceBackward(family.backward_limits, args, coming),
        state_(sm90::make_backward(family.backward, args, tuning,
                                   coming == nullptr ? InFlightKeys{} : *coming)) {}

  std::int64_t size_bytes() const override { return state_.size_bytes(); }
  std::int64_t workspace_bytes() const override {
    return static_cast<std::int64_t>(sm90::backward_layout(state_).size_bytes);
  }
  BackwardTiling tiling() const override {
    const BackwardList& list = state_.list;
    const std::int32_t groups = list.spans.empty() ? 0 : list.spans.front().groups_per_item;
    return {list.packed_heads, list.packed_heads * groups};
  }

 protected:
  void enqueue(const BackwardArgs& args, const RunMemory& memory,
               cudaStream_t stream) const override {
    sm90::enqueue_backward(args, state_, memory.workspace, stream);
  }
  std::unique_ptr<InFlightBackward> begin(const BackwardArgs& args, RunMemory memory,
                                          const BackwardArrivals& arrivals,
                                          cudaStream_t stream) const override {
    return std::make_unique<sm90::BackwardRun>(args, state_, std::move(memory), arrivals, stream);
  }

 private:
  sm90::BackwardState state_;
};

KernelFamily family_of(std::span<const sm90::ForwardInstance> forward,
                       std::span<const sm90::BackwardInstance> backward, bool has_clusters) {
  return {forward, backward, limits_of(forward), limits_of(backward), has_clusters};
}

class KernelBackend : public AttentionBackend {
 public:
  KernelBackend(std::string name, const KernelFamily& family)
      : name_(std::move(name)), family_(family) {}

  const std::string& name() const final { return name_; }
  const AttentionLimits& limits() const final { return family_.limits; }
  /// The kernels for a device that the backend serves.
  virtual const KernelFamily& family_on(std::int32_t /*device*/) const { return family_; }

  std::shared_ptr<const PreparedForward> prepare_forward(const ForwardArgs& args,
                                                         const ForwardTuning& tuning) const final {
    return make_forward(args, tuning, nullptr);
  }
  std::shared_ptr<const PreparedBackward> prepare_backward(
      const BackwardArgs& args, const BackwardTuning& tuning) const override {
    return make_backward(args, tuning, nullptr);
  }

 protected:
  std::shared_ptr<const PreparedForward> make_forward(const ForwardArgs& args,
                                                      const ForwardTuning& tuning,
                                                      const InFlightKeys* coming) const {
    const KernelFamily& family = family_on(args.q.device);
    check_problem(family.limits, args);
    if (coming != nullptr) check_in_flight_keys(*coming, args.k.shape[0], args.k.shape[1]);
    const DeviceScope scope(args.q.device);
    return std::make_shared<const KernelForward>(family, args, tuning, coming);
  }
  std::shared_ptr<const PreparedBackward> make_backward(const BackwardArgs& args,
                                                        const BackwardTuning& tuning,
                                                        const InFlightKeys* coming) const {
    const KernelFamily& family = family_on(args.q.device);
    check_problem(family.backward_limits, args);
    if (coming != nullptr) check_in_flight_keys(*coming, args.k.shape[0], args.k.shape[1]);
    const DeviceScope scope(args.q.device);
    return std::make_shared<const KernelBackward>(family, args, tuning, coming);
  }

 private:
  std::string name_;
  KernelFamily family_;
};

class Sm90Backend final : public KernelBackend {
 public:
  Sm90Backend()
      : KernelBackend("sm90",
                      family_of(sm90::forward_instances(), sm90::backward_instances(), true)) {}

  bool serves(std::int32_t device) const override {
    return is_device(device) && device_info(device).is_hopper();
  }
  bool takes_in_flight_keys() const override { return true; }
  std::shared_ptr<const PreparedForward> prepare_in_flight_forward(
      const ForwardArgs& args, const ForwardTuning& tuning,
      const InFlightKeys& coming) const override {
    return make_forward(args, tuning, &coming);
  }
  std::shared_ptr<const PreparedBackward> prepare_in_flight_backward(
      const BackwardArgs& args, const BackwardTuning& tuning,
      const InFlightKeys& coming) const override {
    if (coming.own_rows != 0) {
      throw invalid("coming.own_rows", coming.own_rows, "0 in the backward");
    }
    return make_backward(args, tuning, &coming);
  }
};

/// Keys are awaited before a run: kernels of GPUs before Hopper do not begin beside others.
class MmaBackend final : public KernelBackend {
 public:
  MmaBackend()
      : KernelBackend("mma", family_with(mma::kLargestShared)),
        large_(family_with(mma::kLargeShared)),
        small_(family_with(mma::kSmallShared)) {}

  bool serves(std::int32_t device) const override {
    return is_device(device) && device_info(device).major >= 8;
  }
  const KernelFamily& family_on(std::int32_t device) const override {
    if (!is_device(device)) return KernelBackend::family_on(device);
    const auto shared_bytes = static_cast<std::size_t>(
        std::min(device_info(device).shared_bytes, 1024 * shared_kib_env()));
    if (shared_bytes < mma::kLargeShared) return small_;
    return shared_bytes < mma::kLargestShared ? large_ : KernelBackend::family_on(device);
  }

 private:
  /// Lists are made without clusters on every GPU, so that Hopper runs what others do.
  static KernelFamily family_with(std::size_t shared_bytes) {
    return family_of(mma::forward_instances(shared_bytes), mma::backward_instances(shared_bytes),
                     false);
  }

  KernelFamily large_;
  KernelFamily small_;
};

}  // namespace

const std::shared_ptr<const AttentionBackend>& sm90_backend() {
  static const std::shared_ptr<const AttentionBackend> backend =
      std::make_shared<const Sm90Backend>();
  return backend;
}

const std::shared_ptr<const AttentionBackend>& mma_backend() {
  static const std::shared_ptr<const AttentionBackend> backend =
      std::make_shared<const MmaBackend>();
  return backend;
}

const KernelFamily& kernels_on(const std::string& backend, std::int32_t device) {
  if (device < 0) refuse_device(device);
  const auto found = find_backend(backend, device);
  const auto* kernels = dynamic_cast<const KernelBackend*>(found.get());
  if (kernels == nullptr) {
    throw invalid("backend", backend, "sm90 or mma, or none, with slices in device memory");
  }
  return kernels->family_on(device);
}

void refuse_device(std::int32_t device) {
  if (device < 0) throw invalid("q.device", device, "a CUDA ordinal");
  if (is_device(device)) {
    throw invalid("q.device", device_name(device),
                  "GPUs of compute capability 9.0, and for slices 8.0 and later; try: a backend of "
                  "another package, "
                  "in Python MAGI_ATTENTION_KERNEL_BACKEND=flex");
  }
  throw invalid("q.device", device,
                "one of the " + std::to_string(device_count()) + " GPUs here, -1 (host memory)");
}

}  // namespace magi
