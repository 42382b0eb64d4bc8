// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/combine.hpp"

#include "base/check.hpp"
#include "base/half.hpp"

namespace magi {
namespace {

double load(const TensorView& tensor, std::int64_t place) {
  switch (tensor.dtype) {
    case DType::Float64:
      return static_cast<const double*>(tensor.data)[place];
    case DType::Float32:
      return static_cast<const float*>(tensor.data)[place];
    case DType::Float16:
      return float16_to_float(static_cast<const std::uint16_t*>(tensor.data)[place]);
    case DType::BFloat16:
      return bfloat16_to_float(static_cast<const std::uint16_t*>(tensor.data)[place]);
    case DType::Int32:
    case DType::Int64:
      break;
  }
  throw invalid("dtype", dtype_name(tensor.dtype), "a floating-point type");
}

void store(double value, const TensorView& tensor, std::int64_t place) {
  const auto single = static_cast<float>(value);
  switch (tensor.dtype) {
    case DType::Float64:
      static_cast<double*>(tensor.data)[place] = value;
      return;
    case DType::Float32:
      static_cast<float*>(tensor.data)[place] = single;
      return;
    case DType::Float16:
      static_cast<std::uint16_t*>(tensor.data)[place] = float_to_float16(single);
      return;
    case DType::BFloat16:
      static_cast<std::uint16_t*>(tensor.data)[place] = float_to_bfloat16(single);
      return;
    case DType::Int32:
    case DType::Int64:
      break;
  }
  throw invalid("dtype", dtype_name(tensor.dtype), "a floating-point type");
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
