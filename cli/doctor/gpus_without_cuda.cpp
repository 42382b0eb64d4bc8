// SPDX-License-Identifier: Apache-2.0
#include "doctor/gpus.hpp"

namespace magi::cli {

GpuMachine find_gpus() {
  GpuMachine machine;
  machine.refusal = "this magi is built without CUDA";
  return machine;
}

}  // namespace magi::cli
