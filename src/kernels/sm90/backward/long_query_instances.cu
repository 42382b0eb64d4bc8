// SPDX-License-Identifier: Apache-2.0
#include "base/check.hpp"
#include "kernels/sm90/backward/launch.cuh"

namespace magi::sm90 {

/// An instance in a file of its own, like those of head dim 256.
template <DType kType>
struct LongQueryInstance {
  static constexpr BackwardConfig kConfig{.type = kType,
                                          .dim_qk = 192,
                                          .dim_v = 128,
                                          .has_softcap = true,
                                          .form = KernelForm::LongQueries,
                                          .q_stages = 2};
};

BackwardInstance long_query_instance(DType type) {
  MAGI_CHECK(type == DType::BFloat16 || type == DType::Float16);
  return type == DType::BFloat16 ? backward_instance<LongQueryInstance<DType::BFloat16>>()
                                 : backward_instance<LongQueryInstance<DType::Float16>>();
}

}  // namespace magi::sm90
