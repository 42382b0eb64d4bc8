// SPDX-License-Identifier: Apache-2.0
#include "base/check.hpp"
#include "kernels/sm90/backward/launch.cuh"

namespace magi::sm90 {

/// An instance in a file of its own: head dim 256 compiles as long as two other dims.
template <DType kType>
struct SharedKeysInstance {
  static constexpr BackwardConfig kConfig{.type = kType,
                                          .dim_qk = 256,
                                          .dim_v = 256,
                                          .has_softcap = true,
                                          .form = KernelForm::SharedKeys,
                                          .q_stages = 2,
                                          .dout_stages = 1};
};

BackwardInstance shared_keys_instance(DType type) {
  MAGI_CHECK(type == DType::BFloat16 || type == DType::Float16);
  return type == DType::BFloat16 ? backward_instance<SharedKeysInstance<DType::BFloat16>>()
                                 : backward_instance<SharedKeysInstance<DType::Float16>>();
}

}  // namespace magi::sm90
