// SPDX-License-Identifier: Apache-2.0
#include "cuda/ptx/wgmma_n160.cuh"
#include "gpu/variants.hpp"
#include "kernels/sm90/forward/launch.cuh"

namespace magi::bench {

using sm90::ForwardConfig;
using sm90::Schedule;

template <int kDim, int kKeys, Schedule kSchedule>
struct Candidate {
  static constexpr ForwardConfig kConfig{.dim = kDim, .keys = kKeys, .schedule = kSchedule};
};

namespace {

template <int kDim, int kKeys, Schedule kSchedule>
constexpr sm90::ForwardInstance candidate() {
  return sm90::forward_instance<Candidate<kDim, kKeys, kSchedule>>();
}

constexpr Variant kVariants[] = {
    {"turns 128x128", candidate<128, 128, Schedule::Turns>()},
    {"free 128x128", candidate<128, 128, Schedule::Free>()},
    {"dim64 turns 128x128", candidate<64, 128, Schedule::Turns>()},
    {"dim64 free 128x128", candidate<64, 128, Schedule::Free>()},
};

}  // namespace

std::span<const Variant> forward_variants() { return kVariants; }

}  // namespace magi::bench
