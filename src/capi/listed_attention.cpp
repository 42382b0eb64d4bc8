// SPDX-License-Identifier: Apache-2.0
#include "capi/attention_arguments.hpp"
#include "capi/outputs.hpp"
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
    const magi::AttentionInputs in = read_inputs(inputs);
    const magi::AttentionResult out = read_result(result);
    check_outputs(in, out);
    const magi::KeyLists given = read_lists(lists);
    if (in.q.device == magi::kCpuDevice) {
      magi::attention_forward_cpu(forward_args(in, out), given);
    } else {
      const std::int32_t sm_margin = read_struct(inputs, "inputs").sm_margin;
      magi::attention_forward_cuda(forward_args(in, out), given, sm_margin, stream);
    }
  });
}

magi_status magi_listed_attention_backward(const magi_key_lists* lists,
                                           const magi_attention_inputs* inputs,
                                           const magi_attention_result* result,
                                           const magi_attention_gradients* gradients,
                                           void* stream) {
  return guarded([&] {
    const magi::AttentionInputs in = read_inputs(inputs);
    const magi::AttentionResult out = read_result(result);
    const Gradients given = read_gradients(gradients);
    check_outputs(in, out, given.output, given.input);
    const magi::KeyLists keys = read_lists(lists);
    if (in.q.device == magi::kCpuDevice) {
      magi::attention_backward_cpu(backward_args(in, out, given), keys);
    } else {
      const magi::ListedBackwardTuning tuning{.sm_margin = read_struct(inputs, "inputs").sm_margin,
                                              .is_fast = in.is_fast_backward};
      magi::attention_backward_cuda(backward_args(in, out, given), keys, tuning, stream);
    }
  });
}
