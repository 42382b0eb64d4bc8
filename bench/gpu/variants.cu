// SPDX-License-Identifier: Apache-2.0
#include "cuda/ptx/wgmma_n160.cuh"
#include "gpu/variants.hpp"
#include "kernels/sm90/forward/launch.cuh"

namespace magi::bench {

using sm90::ForwardConfig;
using sm90::Schedule;

struct Turns128x128 {
  static constexpr ForwardConfig kConfig{.dim = 128, .keys = 128};
};
struct Free128x128 {
  static constexpr ForwardConfig kConfig{.dim = 128, .keys = 128, .schedule = Schedule::Free};
};
struct Rotation128x128 {
  static constexpr ForwardConfig kConfig{.dim = 128, .keys = 128, .schedule = Schedule::Rotation};
};
struct Turns128x160 {
  static constexpr ForwardConfig kConfig{.dim = 128, .keys = 160};
};
struct Dim64Turns128x128 {
  static constexpr ForwardConfig kConfig{.dim = 64, .keys = 128};
};

namespace {

constexpr Variant kVariants[] = {
    {"turns 128x128", sm90::forward_instance<Turns128x128>()},
    {"free 128x128", sm90::forward_instance<Free128x128>()},
    {"rotation 128x128", sm90::forward_instance<Rotation128x128>()},
    {"turns 128x160", sm90::forward_instance<Turns128x160>()},
    {"dim64 turns 128x128", sm90::forward_instance<Dim64Turns128x128>()},
};

}  // namespace

std::span<const Variant> forward_variants() { return kVariants; }

}  // namespace magi::bench
