// SPDX-License-Identifier: Apache-2.0
#include "common/random_values.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "base/half.hpp"
#include "base/random.hpp"

namespace magi::cli {
namespace {

/// Odd, so that repeated values fall on other heads and dims.
constexpr std::int64_t kPeriod = (std::int64_t{1} << 21) + 1531;
constexpr std::int32_t kSteps = 1 << 20;

/// A sum of uniforms of variance 1.
float draw(RandomStream& random) {
  double sum = 0.0;
  for (int i = 0; i < 3; ++i) sum += random.between(-kSteps, kSteps);
  return static_cast<float>(sum / kSteps);
}

}  // namespace

DeviceBuffer random_bfloat16(std::int64_t count, std::uint64_t seed) {
  RandomStream random(seed);
  std::vector<std::uint16_t> values(static_cast<std::size_t>(std::min(count, kPeriod)));
  for (std::uint16_t& value : values) value = float_to_bfloat16(draw(random));
  const DeviceBuffer period = to_device_sync(std::span<const std::uint16_t>(values));
  DeviceBuffer buffer(static_cast<std::size_t>(count) * sizeof(std::uint16_t));
  auto* target = static_cast<std::uint16_t*>(buffer.data());
  for (std::int64_t begin = 0; begin < count; begin += kPeriod) {
    const auto part = static_cast<std::size_t>(std::min(kPeriod, count - begin));
    cuda_check(cudaMemcpyAsync(target + begin, period.data(), part * sizeof(std::uint16_t),
                               cudaMemcpyDeviceToDevice, nullptr),
               "cudaMemcpyAsync");
  }
  cuda_check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  return buffer;
}

}  // namespace magi::cli
