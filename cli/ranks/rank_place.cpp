// SPDX-License-Identifier: Apache-2.0
#include "ranks/rank_place.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "base/random.hpp"

namespace magi::cli {
namespace {

/// Floats between -1 and 1, whose halves are such numbers of 16 bits too.
std::shared_ptr<void> random_memory(std::int64_t size_bytes) {
  constexpr std::int64_t kPeriod = 4099;  // values that repeat
  constexpr std::int32_t kSteps = 1 << 20;
  RandomStream random(1);
  std::vector<float> period;
  for (std::int64_t i = 0; i < kPeriod; ++i) {
    period.push_back(static_cast<float>(random.between(-kSteps, kSteps)) / kSteps);
  }
  const auto count = static_cast<std::size_t>(size_bytes) / sizeof(float) + 1;
  auto values = std::make_shared<std::vector<float>>(count);
  for (std::size_t i = 0; i < count; ++i) (*values)[i] = period[i % period.size()];
  return {values, values->data()};
}

double wall_seconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

RankPlace host_place() {
  return {.name = "CPU",
          .allocate = random_memory,
          .copy_sync =
              [](void* to, const void* from, std::int64_t size_bytes) {
                std::memcpy(to, from, static_cast<std::size_t>(size_bytes));
              },
          .time_sync = wall_seconds};
}

PlacedTensor::PlacedTensor(const RankPlace& place, DType dtype,
                           std::initializer_list<std::int64_t> shape)
    : view(contiguous_view(nullptr, dtype, shape, place.device)),
      memory(place.allocate(size_bytes())) {
  view.data = memory.get();
}

std::int64_t PlacedTensor::size_bytes() const {
  return view.num_elements() * static_cast<std::int64_t>(dtype_bytes(view.dtype));
}

}  // namespace magi::cli
