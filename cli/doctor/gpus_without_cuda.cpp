// SPDX-License-Identifier: Apache-2.0
#include <stdexcept>

#include "doctor/gpus.hpp"

namespace magi::cli {

GpuMachine find_gpus() {
  GpuMachine machine;
  machine.refusal = "this magi is built without CUDA";
  return machine;
}

void on_gpu(std::int32_t /*device*/, const std::function<void(const RankPlace&)>& /*body*/) {
  throw std::runtime_error("this magi is built without CUDA, so there is no GPU to work on");
}

std::string run_gpu_ranks(
    std::int32_t /*num_ranks*/,
    const std::function<void(Communicator& group, const RankPlace& place)>& /*body*/) {
  throw std::runtime_error("this magi is built without CUDA, so there are no GPUs to work on");
}

}  // namespace magi::cli
