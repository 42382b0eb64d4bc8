// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/forward/case.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "kernels/attention/backend.hpp"
#include "support/gpu/device_slices.hpp"

namespace magi::test {
namespace {

using Call = std::function<void(const ForwardArgs&)>;

void call_with_host_list(const ForwardCase& test, const ForwardArgs& args,
                         const ForwardTuning& tuning) {
  const auto backend = find_backend(test.backend, args.q.device);
  backend->prepare_forward(args, tuning)->run(args, {}, nullptr);
}

/// With the heads per tile that a list made on the device has where none are asked for: the largest
/// power of two up to 16 that divides the heads of a kv head.
ForwardTuning tuning_with_most_heads(const ForwardCase& test) {
  const std::int32_t group = test.heads_q / test.heads_kv;
  ForwardTuning tuning = test.tuning;
  tuning.packed_heads = std::min(group & -group, 16);
  return tuning;
}

void call_with_device_list(const ForwardCase& test, const ForwardArgs& args) {
  const std::optional<TypedRanges> ranges = typed_ranges(args.slices);
  ASSERT_TRUE(ranges);
  const DeviceListTuning list_tuning{.forward = test.tuning, .backend = test.backend};
  const std::int64_t size_bytes = forward_workspace_bytes(args, ranges->count(), list_tuning);
  const StreamBuffer workspace = pool_memory(static_cast<std::size_t>(size_bytes));
  const DeviceRanges slices(*ranges);
  attention_forward_cuda(args, slices.view(), {workspace.data(), size_bytes}, list_tuning, nullptr);
}

void run(const ForwardCase& test, const GuardedInputs& inputs, GuardedOutputs& outputs,
         const Call& call) {
  ForwardArgs args;
  inputs.put_into(args);
  outputs.put_into(args, test.has_max_logits);
  const std::span<const BandSlice> slices = test.mask.slices;
  const std::size_t middle = test.is_merging ? slices.size() / 2 : 0;
  if (test.is_merging) {
    args.slices = slices.first(middle);
    args.sink = {};
    call(args);
    args.is_merging = true;
  }
  args.slices = slices.subspan(middle);
  inputs.put_into(args);
  call(args);
  cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  outputs.download_sync();
}

}  // namespace

std::ostream& operator<<(std::ostream& stream, const ForwardCase& test) {
  return stream << test.backend << ' ' << test.shape() << ", " << test.mask.slices.size()
                << " slices, float out " << test.has_float_out << ", merging " << test.is_merging
                << ", packed " << test.tuning.packed_heads << ", splits " << test.tuning.max_pieces
                << " of " << test.tuning.piece_cost << ", seed " << test.seed;
}

void check_forward(const ForwardCase& test) {
  SCOPED_TRACE(::testing::Message() << test);
  const GuardedInputs inputs(test.shape(), test.seed, test.magnitude);
  GuardedOutputs outputs(test.shape(), test.out_type());
  const Call with_host_list = [&](const ForwardArgs& args) {
    call_with_host_list(test, args, test.tuning);
  };
  const Call with_device_list = [&](const ForwardArgs& args) { call_with_device_list(test, args); };
  const Call with_most_heads = [&](const ForwardArgs& args) {
    call_with_host_list(test, args, tuning_with_most_heads(test));
  };
  ASSERT_NO_THROW(run(test, inputs, outputs, with_host_list));
  const auto counts = reference::counts_of(test.mask);
  for (std::int32_t head = 0; head < test.heads_kv; ++head) {
    outputs.check_head(inputs.dense(head), counts, head, test.has_max_logits);
  }
  // Once more, where ranges can say the mask with a list made on the device.
  const bool is_typed = typed_ranges(test.mask.slices).has_value();
  const bool has_other_packing = is_typed && test.tuning.packed_heads == 0;
  GuardedOutputs packed(test.shape(), test.out_type());
  if (has_other_packing) {
    ASSERT_NO_THROW(run(test, inputs, packed, with_most_heads));
  }
  GuardedOutputs again(test.shape(), test.out_type());
  ASSERT_NO_THROW(run(test, inputs, again, is_typed ? with_device_list : with_host_list));
  expect_same_outputs(has_other_packing ? packed : outputs, again);
}

}  // namespace magi::test
