// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "magi/runtime.hpp"

namespace magi::reliability {

/// A plan for a random mask: equal on all ranks for equal numbers.
std::shared_ptr<const Plan> random_plan(std::uint64_t seed, std::int64_t step,
                                        std::int32_t num_ranks, bool is_on_gpu);

/// One rank's layer: random tensors for a plan, in host memory (float32) or on a GPU (bfloat16),
/// and its calls.
class Layer {
 public:
  virtual ~Layer() = default;
  virtual void forward() = 0;
  virtual void backward() = 0;
  /// Waits for the calls; stands for the bits of all results but dq. Throws CommError where the
  /// group has failed, else InternalError where one is NaN.
  virtual std::uint64_t digest_sync() = 0;
};

/// `device`: kCpuDevice or a GPU; values are those of `seed`. An `allocator` without functions is
/// the library's own. Collective.
std::unique_ptr<Layer> make_layer(std::shared_ptr<const Plan> plan, Communicator& group,
                                  std::int32_t device, std::uint64_t seed,
                                  const DeviceAllocator& allocator = {});

}  // namespace magi::reliability
