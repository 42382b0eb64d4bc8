// SPDX-License-Identifier: Apache-2.0
#include "runtime/tensors/device_calls.hpp"

#include <cstring>
#include <string>

#include "base/check.hpp"
#include "base/half.hpp"
#include "cuda/capture.hpp"
#include "cuda/device.hpp"
#include "runtime/tensors/device_elements.hpp"

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

/// The bits of a value in an element type.
std::uint64_t bits_of(double value, DType dtype) {
  std::uint64_t bits = 0;
  const auto keep = [&bits](auto element) { std::memcpy(&bits, &element, sizeof(element)); };
  switch (dtype) {
    case DType::Float64:
      keep(value);
      break;
    case DType::Float32:
      keep(static_cast<float>(value));
      break;
    case DType::Float16:
      keep(float_to_float16(static_cast<float>(value)));
      break;
    case DType::BFloat16:
      keep(float_to_bfloat16(static_cast<float>(value)));
      break;
    case DType::Int32:
      keep(static_cast<std::int32_t>(value));
      break;
    case DType::Int64:
      keep(static_cast<std::int64_t>(value));
      break;
  }
  return bits;
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

void fill_device_elements(const TensorView& target, double value, void* stream) {
  const DeviceScope scope(target.device);
  fill_device_bits(target, bits_of(value, target.dtype), static_cast<cudaStream_t>(stream));
}

void clear_device_elements(const TensorView& target, void* stream) {
  const DeviceScope scope(target.device);
  clear_device_values(target, static_cast<cudaStream_t>(stream));
}

void copy_device_elements(const TensorView& source, const TensorView& target, void* stream) {
  const DeviceScope scope(target.device);
  copy_device_values(source, target, static_cast<cudaStream_t>(stream));
}

void convert_device_elements(const TensorView& source, const TensorView& target, void* stream) {
  const DeviceScope scope(target.device);
  convert_device_rows(source, target, static_cast<cudaStream_t>(stream));
}

}  // namespace magi
