// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/forward/case.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>

#include "reference/dense_attention.hpp"
#include "support/gpu/device_slices.hpp"
#include "support/gpu/random_tensors.hpp"

namespace magi::test {
namespace {

constexpr double kLseTolerance = 2e-4;  ///< relative to max(1, |lse|)

struct Tensors {
  explicit Tensors(const ForwardCase& test)
      : q(test.type, test.mask.rows_q, test.heads_q, test.dim_qk, test.layout),
        k(test.type, test.mask.rows_k, test.heads_kv, test.dim_qk, test.layout),
        v(test.type, test.mask.rows_k, test.heads_kv, test.dim_v, test.layout) {
    RandomStream random(test.seed);
    fill_random(q, random, test.magnitude);
    fill_random(k, random, test.magnitude);
    fill_random(v, random, test.magnitude);
    if (test.num_sinks == 0) return;
    const bool is_shared = test.params.sink_layout == SinkLayout::SinkHead;
    sink = std::make_unique<GuardedTensor>(DType::Float32, is_shared ? 1 : test.mask.rows_q,
                                           test.num_sinks, test.heads_q);
    fill_random(*sink, random, 2.0);
  }

  GuardedTensor q;
  GuardedTensor k;
  GuardedTensor v;
  std::unique_ptr<GuardedTensor> sink;
};

/// Outputs, poisoned with NaN from the start (guards and elements are 0xff bytes).
struct Outputs {
  explicit Outputs(const ForwardCase& test)
      : out(test.has_float_out || test.is_merging ? DType::Float32 : test.type, test.mask.rows_q,
            test.heads_q, test.dim_v, test.layout),
        lse(DType::Float32, test.mask.rows_q, test.heads_q, 1, test.layout),
        max_logits(DType::Float32, test.heads_q, 1, 1) {
    out.upload_sync();
    lse.upload_sync();
    max_logits.upload_sync();
  }

  GuardedTensor out;
  GuardedTensor lse;
  GuardedTensor max_logits;
};

using Call = std::function<void(const ForwardArgs&)>;

void call_with_host_list(const ForwardArgs& args, const ForwardTuning& tuning) {
  attention_forward_cuda(args, ForwardWork(args, tuning), nullptr);
}

/// With the heads per tile that a list made on the device has where none are asked for: the largest
/// power of two up to 16 that divides the heads of a kv head.
ForwardTuning tuning_with_most_heads(const ForwardCase& test) {
  const std::int32_t group = test.heads_q / test.heads_kv;
  ForwardTuning tuning = test.tuning;
  tuning.packed_heads = std::min(group & -group, 16);
  return tuning;
}

void call_with_device_list(const ForwardArgs& args, const ForwardTuning& tuning) {
  const std::optional<TypedRanges> ranges = typed_ranges(args.slices);
  ASSERT_TRUE(ranges);
  const DeviceListTuning list_tuning{.forward = tuning};
  const std::int64_t size_bytes = forward_workspace_bytes(args, ranges->count(), list_tuning);
  const StreamBuffer workspace = pool_memory(static_cast<std::size_t>(size_bytes));
  const DeviceRanges slices(*ranges);
  attention_forward_cuda(args, slices.view(), {workspace.data(), size_bytes}, list_tuning, nullptr);
}

void run(const ForwardCase& test, const Tensors& tensors, Outputs& outputs, const Call& call) {
  ForwardArgs args;
  args.q = tensors.q.view();
  args.k = tensors.k.view();
  args.v = tensors.v.view();
  args.out = outputs.out.view();
  args.lse = outputs.lse.view(2);
  if (test.has_max_logits) args.max_logits = outputs.max_logits.view(1);
  args.params = test.params;
  const std::span<const BandSlice> slices = test.mask.slices;
  const std::size_t middle = test.is_merging ? slices.size() / 2 : 0;
  if (test.is_merging) {
    args.slices = slices.first(middle);
    call(args);
    args.is_merging = true;
  }
  args.slices = slices.subspan(middle);
  if (tensors.sink) args.sink = sink_view(*tensors.sink, test.params.sink_layout);
  call(args);
  cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  outputs.out.download_sync();
  outputs.lse.download_sync();
  outputs.max_logits.download_sync();
}

double unit_in_last_place(double value, DType type) {
  if (value == 0.0) return 0.0;
  const int digits = type == DType::BFloat16 ? 7 : 10;
  return std::ldexp(1.0, std::ilogb(value) - digits);
}

/// In float64, and as a plain computation in 16 bits does it.
struct Expected {
  reference::DenseOutput truth;
  reference::DenseOutput plain;
};

Expected expected_of(const ForwardCase& test, const Tensors& tensors) {
  reference::DenseInput in{.rows_q = test.mask.rows_q,
                           .rows_k = test.mask.rows_k,
                           .heads_q = test.heads_q,
                           .heads_kv = test.heads_kv,
                           .dim_qk = test.dim_qk,
                           .dim_v = test.dim_v,
                           .q = values_of(tensors.q),
                           .k = values_of(tensors.k),
                           .v = values_of(tensors.v),
                           .sink = tensors.sink ? values_of(*tensors.sink) : std::vector<double>{},
                           .num_sinks = test.num_sinks,
                           .params = test.params};
  const auto counts = reference::counts_of(test.mask);
  Expected expected{.truth = dense_forward(in, counts)};
  in.rounding = reference::rounding_of(test.type);
  in.is_rounding_scores = true;
  expected.plain = dense_forward(in, counts);
  return expected;
}

void check_out(const ForwardCase& test, const GuardedTensor& out, const Expected& expected) {
  const std::vector<double>& truth = expected.truth.out;
  double largest = 0.0;
  double plain_error = 0.0;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    largest = std::max(largest, std::abs(truth[i]));
    plain_error = std::max(plain_error, std::abs(expected.plain.out[i] - truth[i]));
  }
  const double bound = 2.0 * plain_error + unit_in_last_place(largest, test.type);
  std::size_t i = 0;
  for (std::int64_t row = 0; row < out.rows(); ++row) {
    for (std::int64_t head = 0; head < out.heads(); ++head) {
      for (std::int64_t d = 0; d < out.dim(); ++d, ++i) {
        ASSERT_LE(std::abs(out.get(row, head, d) - truth[i]), bound)
            << "row " << row << " head " << head << " dim " << d << ": out "
            << out.get(row, head, d) << ", expected " << truth[i];
      }
    }
  }
}

void check_value(double seen, double expected, const char* what, std::int64_t row,
                 std::int64_t head) {
  if (std::isinf(expected)) {
    ASSERT_EQ(seen, expected) << what << " of row " << row << " head " << head;
  } else {
    ASSERT_LE(std::abs(seen - expected), kLseTolerance * std::max(1.0, std::abs(expected)))
        << what << " of row " << row << " head " << head << " is " << seen << ", expected "
        << expected;
  }
}

void check_rows(const ForwardCase& test, const Outputs& outputs,
                const reference::DenseOutput& expected) {
  for (std::int64_t row = 0; row < outputs.lse.rows(); ++row) {
    for (std::int64_t head = 0; head < outputs.lse.heads(); ++head) {
      const auto i = static_cast<std::size_t>(row * test.heads_q + head);
      check_value(outputs.lse.get(row, head, 0), expected.lse[i], "lse", row, head);
    }
  }
  if (!test.has_max_logits) return;
  for (std::int64_t head = 0; head < test.heads_q; ++head) {
    check_value(outputs.max_logits.get(head, 0, 0),
                expected.max_logits[static_cast<std::size_t>(head)], "max_logits", 0, head);
  }
}

}  // namespace

std::ostream& operator<<(std::ostream& stream, const ForwardCase& test) {
  return stream << dtype_name(test.type) << ", " << test.mask.rows_q << " x " << test.mask.rows_k
                << " rows, " << test.mask.slices.size() << " slices, heads " << test.heads_q << ":"
                << test.heads_kv << ", dims " << test.dim_qk << "/" << test.dim_v << ", layout "
                << static_cast<int>(test.layout) << ", float out " << test.has_float_out
                << ", merging " << test.is_merging << ", sinks " << test.num_sinks << ", softcap "
                << test.params.softcap << ", packed " << test.tuning.packed_heads << ", splits "
                << test.tuning.max_pieces << " of " << test.tuning.piece_cost << ", seed "
                << test.seed;
}

void check_forward(const ForwardCase& test) {
  SCOPED_TRACE(::testing::Message() << test);
  const Tensors tensors(test);
  Outputs outputs(test);
  const Call with_host_list = [&](const ForwardArgs& args) {
    call_with_host_list(args, test.tuning);
  };
  const Call with_device_list = [&](const ForwardArgs& args) {
    call_with_device_list(args, test.tuning);
  };
  const Call with_most_heads = [&](const ForwardArgs& args) {
    call_with_host_list(args, tuning_with_most_heads(test));
  };
  ASSERT_NO_THROW(run(test, tensors, outputs, with_host_list));
  const Expected expected = expected_of(test, tensors);
  check_out(test, outputs.out, expected);
  check_rows(test, outputs, expected.truth);
  EXPECT_TRUE(outputs.out.has_whole_guards()) << "out was written outside its elements";
  EXPECT_TRUE(outputs.lse.has_whole_guards()) << "lse was written outside its elements";
  // Once more, where ranges can say the mask with a list made on the device.
  const bool is_typed = typed_ranges(test.mask.slices).has_value();
  const bool has_other_packing = is_typed && test.tuning.packed_heads == 0;
  Outputs packed(test);
  if (has_other_packing) {
    ASSERT_NO_THROW(run(test, tensors, packed, with_most_heads));
  }
  const Outputs& first = has_other_packing ? packed : outputs;
  Outputs again(test);
  ASSERT_NO_THROW(run(test, tensors, again, is_typed ? with_device_list : with_host_list));
  expect_same_bits(first.out, again.out);
  expect_same_bits(first.lse, again.lse);
  if (test.has_max_logits) expect_same_bits(first.max_logits, again.max_logits);
}

}  // namespace magi::test
