// SPDX-License-Identifier: Apache-2.0
#include "gpu/variants.hpp"
#include "kernels/sm90/forward/launch.cuh"

namespace magi::bench {

using sm90::ForwardConfig;
using sm90::Schedule;

template <int kDim, int kKeys, int kConsumers, int kStages, Schedule kSchedule>
struct Candidate {
  static constexpr ForwardConfig kConfig{.dim = kDim,
                                         .keys = kKeys,
                                         .consumers = kConsumers,
                                         .kv_stages = kStages,
                                         .schedule = kSchedule};
};

namespace {

template <int kDim, int kKeys, int kConsumers, int kStages, Schedule kSchedule = Schedule::Turns>
constexpr sm90::ForwardInstance candidate() {
  return sm90::forward_instance<Candidate<kDim, kKeys, kConsumers, kStages, kSchedule>>();
}

constexpr Variant kVariants[] = {
    {"128x128", candidate<128, 128, 2, 5>()},
    {"128x128 4 stages", candidate<128, 128, 2, 4>()},
    {"128x128 free", candidate<128, 128, 2, 5, Schedule::Free>()},

    {"dim64 192x128", candidate<64, 128, 3, 8>()},
    {"dim64 192x128 4 stages", candidate<64, 128, 3, 4>()},
};

}  // namespace

std::span<const Variant> forward_variants() { return kVariants; }

}  // namespace magi::bench
