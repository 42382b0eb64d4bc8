// SPDX-License-Identifier: Apache-2.0
#include "runtime/tensors/check_device.hpp"

#include <string>

#include "base/check.hpp"
#include "cuda/capture.hpp"
#include "cuda/device.hpp"

namespace magi {
namespace {

void check_gapless(const char* name, const TensorView& tensor) {
  std::int64_t stride = 1;
  for (auto axis = static_cast<std::size_t>(tensor.rank); axis-- > 0;) {
    if (tensor.shape[axis] > 1 && tensor.stride[axis] != stride) {
      throw invalid(std::string(name) + ".stride[" + std::to_string(axis) + "]",
                    tensor.stride[axis],
                    std::to_string(stride) + " (on a GPU shards are row-major without gaps)");
    }
    stride *= tensor.shape[axis];
  }
}

}  // namespace

void check_device(const char* name, std::int32_t device) {
  const std::int32_t num_devices = device_count();
  if (device >= 0 && device < num_devices) return;
  throw invalid(std::string(name) + ".device", device,
                "-1 (host memory) or one of the " + std::to_string(num_devices) + " GPUs here");
}

void check_exchange_sms(std::int32_t device, std::int32_t exchange_sms) {
  const std::int32_t num_sms = device_info(device).num_sms;
  if (exchange_sms >= 0 && exchange_sms < num_sms) return;
  throw invalid("options.exchange_sms", exchange_sms, "0 to " + std::to_string(num_sms - 1));
}

void check_not_captured(void* stream, const char* calls) {
  if (graph_of_capture(static_cast<cudaStream_t>(stream)) == nullptr) return;
  throw invalid("stream", "being captured", std::string("one that is not, for ") + calls);
}

void check_device_shards(const ShardPair& pair, const Communicator* communicator, void* stream) {
  if (pair.first.device == kCpuDevice) return;
  check_device(pair.first_name, pair.first.device);
  check_gapless(pair.first_name, pair.first);
  check_gapless(pair.second_name, pair.second);
  // A graph would read the host's tables when it runs: they are gone by then.
  check_not_captured(stream, "dispatch, undispatch and roll");
  if (communicator == nullptr || communicator->num_ranks() == 1) return;
  if (communicator->has_device_exchange()) return;
  throw invalid("communicator", std::string("a ") + communicator->backend() + " group",
                "for tensors on a GPU a group that moves device memory");
}

}  // namespace magi
