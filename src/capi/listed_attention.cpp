// SPDX-License-Identifier: Apache-2.0
#include "capi/attention_arguments.hpp"
#include "capi/status.hpp"
#include "magi/key_lists.hpp"

namespace magi::capi {
namespace {

KeyLists read_lists(const magi_key_lists* lists) {
  const magi_key_lists given = read_struct(lists, "lists");
  return {.indices = read_tensor(given.indices, "indices"),
          .block_keys = given.block_keys,
          .report = read_optional_tensor(given.report, "report")};
}

}  // namespace
}  // namespace magi::capi

using namespace magi::capi;

magi_status magi_listed_attention_forward(const magi_key_lists* lists,
                                          const magi_attention_inputs* inputs,
                                          const magi_attention_result* result, void* stream) {
  return guarded([&] {
    const magi::ForwardArgs args = read_forward(inputs, result);
    const magi::KeyLists keys = read_lists(lists);
    if (args.q.device == magi::kCpuDevice) {
      magi::attention_forward_cpu(args, keys);
    } else {
      magi::attention_forward_cuda(args, keys, inputs->sm_margin, stream);
    }
  });
}

magi_status magi_listed_attention_backward(const magi_key_lists* lists,
                                           const magi_attention_inputs* inputs,
                                           const magi_attention_result* result,
                                           const magi_attention_gradients* gradients,
                                           void* stream) {
  return guarded([&] {
    const magi::BackwardArgs args = read_backward(inputs, result, gradients);
    const magi::KeyLists keys = read_lists(lists);
    if (args.q.device == magi::kCpuDevice) {
      magi::attention_backward_cpu(args, keys);
    } else {
      const magi::ListedBackwardTuning tuning{.sm_margin = inputs->sm_margin,
                                              .is_fast = inputs->is_fast_backward != 0};
      magi::attention_backward_cuda(args, keys, tuning, stream);
    }
  });
}
