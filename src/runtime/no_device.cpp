// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "base/check.hpp"
#include "runtime/device_attention.hpp"
#include "runtime/device_shard.hpp"

// The build without CUDA.
namespace magi {
namespace {

InvalidArgument no_device(const std::string& name, std::int32_t device) {
  return invalid(name + ".device", device, "-1 (host memory), as this build holds no GPU kernels");
}

}  // namespace

std::unique_ptr<DeviceAttention> make_device_attention(const DeviceSetup& setup) {
  throw no_device("q", setup.device);
}

void check_device_shards(const char* first_name, const TensorView& first,
                         const char* /*second_name*/, const TensorView& /*second*/,
                         const Communicator* /*communicator*/) {
  throw no_device(first_name, first.device);
}

void move_device_rows(const DeviceShardMove& move, void* /*stream*/) {
  throw no_device("source", move.source.device);
}

void sum_device_rows(const DeviceShardSum& sum, void* /*stream*/) {
  throw no_device("global", sum.global.device);
}

void fill_device_elements(const TensorView& target, double /*value*/, void* /*stream*/) {
  throw no_device("target", target.device);
}

}  // namespace magi
