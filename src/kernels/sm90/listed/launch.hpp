// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "kernels/sm90/listed/config.hpp"
#include "kernels/sm90/listed/params.hpp"

namespace magi::sm90 {

/// One compiled kernel.
struct ListedInstance {
  ListedConfig config;
  void (*launch)(const ListedForwardParams& params, int num_ctas, cudaStream_t stream) = nullptr;
};

/// The properties that a call needs of a kernel.
struct ListedWish {
  DType type = DType::BFloat16;
  int dim = 0;    ///< the larger of both head dims
  int heads = 0;  ///< query heads of a kv head
  bool is_general = false;
  bool is_joined = false;
};

/// Returns the kernel for a call, or null if none holds its head dims.
const ListedInstance* find_listed_instance(const ListedWish& wish);

/// One compiled kernel of the backward.
struct ListedBackwardInstance {
  ListedConfig config;
  void (*launch)(const ListedBackwardParams& params, int num_ctas, cudaStream_t stream) = nullptr;
};

/// Returns the kernels of a type that add gradients of keys, then those that leave them in parts.
std::span<const ListedBackwardInstance> listed_backward_instances(DType type);
std::span<const ListedBackwardInstance> listed_part_instances(DType type);

/// The forms of a backward: one list at a time, with gradients of keys added to sums (Plain) or
/// left in parts, or joined lists.
enum class ListedForm : std::uint8_t { Plain, Parts, Joined };

/// Returns the kernel for the larger of both head dims and the query heads of a kv head, or null.
const ListedBackwardInstance* find_listed_backward_instance(DType type, int dim, int heads,
                                                            ListedForm form);

}  // namespace magi::sm90
