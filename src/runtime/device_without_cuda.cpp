// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "base/check.hpp"
#include "runtime/device_shard.hpp"
#include "runtime/step_memory.hpp"

// The build without CUDA.
namespace magi {
namespace {

InvalidArgument no_device(const std::string& name, std::int32_t device) {
  return invalid(name + ".device", device, "-1 (host memory), as this build holds no GPU kernels");
}

}  // namespace

std::unique_ptr<StepMemory> make_device_memory(const StepMemorySetup& setup) {
  throw no_device("q", setup.device);
}

void check_device_shards(const ShardPair& pair, const Communicator* /*communicator*/,
                         void* /*stream*/) {
  throw no_device(pair.first_name, pair.first.device);
}

void fill_device_elements(const TensorView& target, double /*value*/, void* /*stream*/) {
  throw no_device("target", target.device);
}

}  // namespace magi
