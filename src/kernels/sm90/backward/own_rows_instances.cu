// SPDX-License-Identifier: Apache-2.0
#include "base/check.hpp"
#include "kernels/sm90/backward/launch.cuh"

namespace magi::sm90 {

template <DType kType>
struct OwnRowsInstance {
  static constexpr BackwardConfig kConfig{.type = kType,
                                          .dim_qk = 128,
                                          .dim_v = 128,
                                          .form = KernelForm::OwnRows,
                                          .q_stages = 6,
                                          .dout_stages = 4};
};

template <DType kType>
BackwardInstance own_rows_instance_of() {
  using Instance = OwnRowsInstance<kType>;
  return {Instance::kConfig, launch_backward_kernel<Instance, false>};
}

BackwardInstance own_rows_instance(DType type) {
  MAGI_CHECK(type == DType::BFloat16 || type == DType::Float16);
  return type == DType::BFloat16 ? own_rows_instance_of<DType::BFloat16>()
                                 : own_rows_instance_of<DType::Float16>();
}

}  // namespace magi::sm90
