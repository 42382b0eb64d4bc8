// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/math.hpp"
#include "comm/device_rows/device_rounding.cuh"
#include "cuda/ptx/order.cuh"

namespace magi::comm {
namespace rounding {
namespace {

constexpr std::int64_t kHalfUnit = 8;  ///< bytes of four 16-bit elements

template <typename Element, bool kIsWide>
__global__ __launch_bounds__(kThreads) void round_sums_kernel(
    const __grid_constant__ RoundedSum sum) {
  ptx::await_kernels_before();
  round_row<Element, kIsWide>(sum, true);
}

unsigned count_row_blocks(const Partials& partials) {
  return static_cast<unsigned>(ceil_div(static_cast<int>(partials.rounded[0].shape[0]), kWarps));
}

}  // namespace

unsigned count_blocks(const Partials& partials) {
  return count_row_blocks(partials) * static_cast<unsigned>(partials.to.size());
}

RoundedSum make_sum(const Partials& partials) {
  RoundedSum sum{.tasks = partials.tasks.sums.data(),
                 .parts = partials.tasks.parts.data(),
                 .num_tasks = static_cast<int>(partials.tasks.sums.size()),
                 .num_rows = static_cast<int>(partials.rounded[0].shape[0]),
                 .num_row_blocks = static_cast<int>(count_row_blocks(partials)),
                 .is_dense = partials.to[0].shape[0] != partials.rounded[0].shape[0]};
  std::ranges::copy(tensor_rows(partials.to), sum.own);
  std::ranges::copy(wire_rows(partials.to, partials.wire_types, partials.wire), sum.wire);
  std::ranges::copy(tensor_rows(partials.rounded), sum.rounded);
  const bool is_wide = wire_type(partials.wire_types, 0) == DType::Float32;
  for (std::size_t t = 0; t < partials.to.size(); ++t) {
    use_units(sum.own[t], kLargestUnit);
    use_units(sum.wire[t], is_wide ? kLargestUnit : kHalfUnit);
    use_units(sum.rounded[t], kHalfUnit);
  }
  return sum;
}

}  // namespace rounding

bool can_round_sums(const Partials& partials) {
  const std::span<const TensorView> targets = partials.rounded;
  if (partials.kind != ExchangeKind::Sum || targets.size() != partials.to.size()) return false;
  if (targets.empty()) return false;
  const std::int64_t own_rows = partials.to[0].shape[0];
  if (own_rows != targets[0].shape[0] && own_rows != partials.tasks.num_sum_rows) return false;
  const DType sent = wire_type(partials.wire_types, 0);
  if (sent != DType::Float32 && sent != targets[0].dtype) return false;
  for (std::size_t t = 0; t < targets.size(); ++t) {
    TensorView like = targets[t];
    like.shape[0] = own_rows;
    const bool is_suited =
        partials.to[t].dtype == DType::Float32 && wire_type(partials.wire_types, t) == sent &&
        dtype_bytes(targets[t].dtype) == 2 && targets[t].dtype == targets[0].dtype &&
        targets[t].shape[0] == targets[0].shape[0] && like.shape == partials.to[t].shape;
    if (!is_suited) return false;
  }
  const auto own = tensor_rows(partials.to);
  const auto wire = wire_rows(partials.to, partials.wire_types, partials.wire);
  const auto target = tensor_rows(targets);
  const auto wire_unit = sent == DType::Float32 ? kLargestUnit : rounding::kHalfUnit;
  return common_unit(own, own) == kLargestUnit && common_unit(wire, wire) >= wire_unit &&
         common_unit(target, target) >= rounding::kHalfUnit;
}

void launch_round_sums(const Partials& partials, cudaStream_t stream) {
  if (rounding::count_blocks(partials) == 0) return;
  rounding::launch(rounding::make_sum(partials), partials, stream,
                   []<typename Element>(Element, bool is_wide) {
                     return is_wide ? rounding::round_sums_kernel<Element, true>
                                    : rounding::round_sums_kernel<Element, false>;
                   });
}

}  // namespace magi::comm
