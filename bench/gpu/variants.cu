// SPDX-License-Identifier: Apache-2.0
#include "gpu/variants.hpp"
#include "kernels/sm90/forward/launch.cuh"

namespace magi::bench {

using sm90::ForwardConfig;

template <int kDim, int kKeys, int kConsumers, int kStages, int kQueries>
struct Candidate {
  static constexpr ForwardConfig kConfig{.dim_qk = kDim,
                                         .dim_v = kDim,
                                         .keys = kKeys,
                                         .consumers = kConsumers,
                                         .kv_stages = kStages,
                                         .q_stages = kQueries};
};

template <bool kHasPingpong>
struct LongQuery {
  static constexpr ForwardConfig kConfig{
      .dim_qk = 192, .dim_v = 128, .q_stages = 1, .has_pingpong = kHasPingpong};
};

template <int kKeys, bool kHasPingpong>
struct Wide {
  static constexpr ForwardConfig kConfig{.dim_qk = 256,
                                         .dim_v = 256,
                                         .keys = kKeys,
                                         .q_stages = 1,
                                         .has_pingpong = kHasPingpong,
                                         .trimmed_keys = 0};
};

namespace {

template <int kDim, int kKeys, int kConsumers, int kStages, int kQueries = 3>
constexpr sm90::ForwardInstance candidate() {
  return sm90::forward_instance<Candidate<kDim, kKeys, kConsumers, kStages, kQueries>>();
}

constexpr Variant kVariants[] = {
    {"128x128", candidate<128, 128, 2, 4>()},
    {"128x128 2 of Q", candidate<128, 128, 2, 4, 2>()},

    {"dim64 192x128", candidate<64, 128, 3, 8>()},
    {"dim64 192x128 2 of Q", candidate<64, 128, 3, 8, 2>()},

    {"dim192x128 128x128", sm90::forward_instance<LongQuery<true>>()},
    {"dim192x128 128x128 free", sm90::forward_instance<LongQuery<false>>()},

    {"dim256 128x80", sm90::forward_instance<Wide<80, true>>()},
    {"dim256 128x80 free", sm90::forward_instance<Wide<80, false>>()},
    {"dim256 128x64", sm90::forward_instance<Wide<64, true>>()},
};

}  // namespace

std::span<const Variant> forward_variants() { return kVariants; }

}  // namespace magi::bench
