// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/forward/launch.cuh"

namespace magi::sm90 {

template <DType kType, int kDim, FeatureSet kFeatures>
struct Instance {
  // At head dim 64 exponentials weigh twice as much: a third warpgroup fills their gaps,
  // and leaves general kernels registers for 64 keys.
  static constexpr ForwardConfig kConfig{
      .type = kType,
      .dim_qk = kDim,
      .dim_v = kDim,
      .keys = kDim == 64 && kFeatures == FeatureSet::General ? 64 : 128,
      .consumers = kDim == 64 ? 3 : 2,
      .kv_stages = kDim == 64 ? 8 : 4,
      .features = kFeatures};
};

/// Q and K longer than V, as in multi-head latent attention. Two K, two V and one Q tile take 208
/// KiB.
template <DType kType, FeatureSet kFeatures>
struct LongQueryInstance {
  static constexpr ForwardConfig kConfig{
      .type = kType, .dim_qk = 192, .dim_v = 128, .q_stages = 1, .features = kFeatures};
};

/// Half of a consumer's registers hold O, and four tiles of 80 keys beside one of Q take 224 KiB.
/// A short tile would save a tenth of a step, less than its code costs.
template <DType kType, FeatureSet kFeatures>
struct WideInstance {
  static constexpr ForwardConfig kConfig{.type = kType,
                                         .dim_qk = 256,
                                         .dim_v = 256,
                                         .keys = 80,
                                         .q_stages = 1,
                                         .trimmed_keys = 0,
                                         .features = kFeatures};
};

namespace {

constexpr DType kBf16 = DType::BFloat16;
constexpr DType kFp16 = DType::Float16;
constexpr FeatureSet kPlain = FeatureSet::Plain;
constexpr FeatureSet kAnyOut = FeatureSet::AnyOut;
constexpr FeatureSet kGeneral = FeatureSet::General;

constexpr ForwardInstance kInstances[] = {
    forward_instance<Instance<kBf16, 64, kPlain>>(),
    forward_instance<Instance<kBf16, 64, kAnyOut>>(),
    forward_instance<Instance<kBf16, 64, kGeneral>>(),
    forward_instance<Instance<kBf16, 128, kPlain>>(),
    forward_instance<Instance<kBf16, 128, kAnyOut>>(),
    forward_instance<Instance<kBf16, 128, kGeneral>>(),
    forward_instance<LongQueryInstance<kBf16, kPlain>>(),
    forward_instance<LongQueryInstance<kBf16, kAnyOut>>(),
    forward_instance<LongQueryInstance<kBf16, kGeneral>>(),
    forward_instance<WideInstance<kBf16, kPlain>>(),
    forward_instance<WideInstance<kBf16, kAnyOut>>(),
    forward_instance<WideInstance<kBf16, kGeneral>>(),
    forward_instance<Instance<kFp16, 64, kPlain>>(),
    forward_instance<Instance<kFp16, 64, kAnyOut>>(),
    forward_instance<Instance<kFp16, 64, kGeneral>>(),
    forward_instance<Instance<kFp16, 128, kPlain>>(),
    forward_instance<Instance<kFp16, 128, kAnyOut>>(),
    forward_instance<Instance<kFp16, 128, kGeneral>>(),
    forward_instance<LongQueryInstance<kFp16, kPlain>>(),
    forward_instance<LongQueryInstance<kFp16, kAnyOut>>(),
    forward_instance<LongQueryInstance<kFp16, kGeneral>>(),
    forward_instance<WideInstance<kFp16, kPlain>>(),
    forward_instance<WideInstance<kFp16, kAnyOut>>(),
    forward_instance<WideInstance<kFp16, kGeneral>>(),
};

}  // namespace

std::span<const ForwardInstance> forward_instances() { return kInstances; }

}  // namespace magi::sm90
