// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/check_args.hpp"

#include "base/check.hpp"
#include "kernels/check/check_tensor.hpp"

namespace magi::cpu {
namespace {

template <typename Args>
Sizes checked_sizes(const Args& args, const KeyLists* lists) {
  check_attention(kLimits, args, kCpuDevice);
  if (lists != nullptr) {
    if (!args.slices.empty()) throw invalid("slices", "given", "none beside lists");
    check_lists(*lists, args.q, args.k);
  }
  Sizes sizes{.rows_q = static_cast<std::int32_t>(args.q.shape[0]),
              .rows_k = static_cast<std::int32_t>(args.k.shape[0]),
              .heads_q = args.q.shape[1],
              .heads_kv = args.k.shape[1],
              .group = args.q.shape[1] / args.k.shape[1],
              .dim_qk = args.q.shape[2],
              .dim_v = args.v.shape[2],
              .real = accumulator_type(args.q.dtype)};
  if (!args.sink.empty()) {
    sizes.num_sinks = args.sink.shape[static_cast<std::size_t>(args.sink.rank - 2)];
  }
  const Mask mask{sizes.rows_q, sizes.rows_k, {args.slices.begin(), args.slices.end()}};
  validate(mask);
  sizes.area = area(mask);
  return sizes;
}

}  // namespace

Sizes check_args(const ForwardArgs& args, const KeyLists* lists) {
  return checked_sizes(args, lists);
}

Sizes check_args(const BackwardArgs& args, const KeyLists* lists) {
  return checked_sizes(args, lists);
}

}  // namespace magi::cpu
