// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

#include "base/host_device.hpp"
#include "magi/tensor.hpp"

// What the library does around a backend that only writes plain results: merge them into earlier
// ones, add gradients, convert types. Tensors of up to 3 axes in floating-point types, in host
// memory or all on one GPU, where the work is enqueued on `stream`; sums run in float64.
namespace magi {

enum class Combination : std::int32_t { Write, Add, Max };

/// target = source, target + source, or the larger of both, element by element.
void combine(const TensorView& source, const TensorView& target, Combination how, void* stream);

/// Attention over some keys, and over others: [rows, heads, dim] and [rows, heads].
struct AttentionPart {
  TensorView out, lse;
};
/// Merges `part` into `sum`, which becomes attention over the keys of both.
void merge(const AttentionPart& part, const AttentionPart& sum, void* stream);

/// The same on a GPU, with work to do.
void combine_on_device(const TensorView& source, const TensorView& target, Combination how,
                       void* stream);
void merge_on_device(const AttentionPart& part, const AttentionPart& sum, void* stream);

/// The element of an array that an index counts, and the strides that say where it lies.
struct Axes {
  std::int64_t shape[3] = {1, 1, 1};
  std::int64_t stride[3] = {0, 0, 0};

  explicit Axes(const TensorView& tensor) {
    for (std::int32_t axis = 0; axis < tensor.rank; ++axis) {
      shape[axis] = tensor.shape[static_cast<std::size_t>(axis)];
      stride[axis] = tensor.stride[static_cast<std::size_t>(axis)];
    }
  }
};
MAGI_HOST_DEVICE std::int64_t place_of(const Axes& axes, std::int64_t index) {
  const std::int64_t last = index % axes.shape[2];
  const std::int64_t rest = index / axes.shape[2];
  return rest / axes.shape[1] * axes.stride[0] + rest % axes.shape[1] * axes.stride[1] +
         last * axes.stride[2];
}

MAGI_HOST_DEVICE double combined(double source, double target, Combination how) {
  if (how == Combination::Write) return source;
  return how == Combination::Add ? target + source : (source > target ? source : target);
}

/// The merge of two partial rows of attention. An lse of -inf says that there are no keys, one of
/// +inf that a sink takes all weight.
struct MergedRow {
  double part_weight = 0.0;
  double sum_weight = 1.0;
  double lse = -INFINITY;
};
MAGI_HOST_DEVICE MergedRow merged_row(double part_lse, double sum_lse) {
  if (part_lse == -INFINITY || sum_lse == INFINITY) return {0.0, 1.0, sum_lse};
  if (sum_lse == -INFINITY || part_lse == INFINITY) return {1.0, 0.0, part_lse};
  const double top = part_lse > sum_lse ? part_lse : sum_lse;
  const double part = exp(part_lse - top);
  const double sum = exp(sum_lse - top);
  return {part / (part + sum), sum / (part + sum), top + log(part + sum)};
}

}  // namespace magi
