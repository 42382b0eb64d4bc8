// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/combine.hpp"

#include "base/element.hpp"

namespace magi {
namespace {

double load(const TensorView& tensor, std::int64_t place) {
  double value = 0.0;
  with_float_type(tensor.dtype, [&]<typename Element>(Element) {
    value = widened(static_cast<const Element*>(tensor.data)[place]);
  });
  return value;
}

void store(double value, const TensorView& tensor, std::int64_t place) {
  with_float_type(tensor.dtype, [&]<typename Element>(Element) {
    static_cast<Element*>(tensor.data)[place] = narrowed<Element>(value);
  });
}

}  // namespace

void combine(const TensorView& source, const TensorView& target, Combination how, void* stream) {
  if (source.num_elements() == 0) return;
  if (source.device != kCpuDevice) return combine_on_device(source, target, how, stream);
  const Axes from(source), to(target);
  for (std::int64_t i = 0; i < source.num_elements(); ++i) {
    const std::int64_t place = place_of(to, i);
    const double value = load(source, place_of(from, i));
    store(how == Combination::Write ? value : combined(value, load(target, place), how), target,
          place);
  }
}

void merge(const AttentionPart& part, const AttentionPart& sum, void* stream) {
  if (part.out.num_elements() == 0) return;
  if (part.out.device != kCpuDevice) return merge_on_device(part, sum, stream);
  const Axes part_out(part.out), part_lse(part.lse), sum_out(sum.out), sum_lse(sum.lse);
  const std::int64_t dim = part.out.shape[2];
  for (std::int64_t row = 0; row < part.lse.num_elements(); ++row) {
    const std::int64_t place = place_of(sum_lse, row);
    const MergedRow merged =
        merged_row(load(part.lse, place_of(part_lse, row)), load(sum.lse, place));
    if (merged.part_weight == 0.0) continue;
    store(merged.lse, sum.lse, place);
    for (std::int64_t i = row * dim; i < (row + 1) * dim; ++i) {
      const std::int64_t target = place_of(sum_out, i);
      store(merged.part_weight * load(part.out, place_of(part_out, i)) +
                merged.sum_weight * load(sum.out, target),
            sum.out, target);
    }
  }
}

}  // namespace magi
