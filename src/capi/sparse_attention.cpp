// SPDX-License-Identifier: Apache-2.0
#include "capi/attention_arguments.hpp"
#include "capi/status.hpp"
#include "magi/block_mask.hpp"
#include "magi/key_lists.hpp"

namespace magi::capi {
namespace {

KeyLists read_lists(const magi_key_lists* lists) {
  const magi_key_lists given = read_struct(lists, "lists");
  return {.indices = read_tensor(given.indices, "indices"),
          .block_keys = given.block_keys,
          .report = read_optional_tensor(given.report, "report")};
}

BlockMask read_mask(const magi_block_mask* mask, const magi_attention_inputs* inputs) {
  const magi_block_mask given = read_struct(mask, "mask");
  return {.visible = given.visible,
          .device = read_inputs(inputs).q.device,
          .heads = given.heads,
          .q_block = given.q_block,
          .k_block = given.k_block,
          .is_causal = read_flag(given.is_causal, "mask.is_causal"),
          .max_blocks = given.max_blocks,
          .max_runs = given.max_runs,
          .error_word = given.error_word};
}

magi::ForwardArgs read_problem(const magi_attention_inputs* inputs) {
  return forward_args(read_inputs(inputs), {});
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

magi_status magi_block_attention_takes(const magi_block_mask* mask,
                                       const magi_attention_inputs* inputs, int32_t* is_taken) {
  return guarded([&] {
    const magi::BlockMask given = read_mask(mask, inputs);
    require(is_taken, "is_taken") =
        magi::block_mask_refusal(read_problem(inputs), given).empty() ? 1 : 0;
  });
}

magi_status magi_block_attention_workspace_bytes(const magi_block_mask* mask,
                                                 const magi_attention_inputs* inputs,
                                                 size_t* size_bytes) {
  return guarded([&] {
    const magi::BlockMask given = read_mask(mask, inputs);
    require(size_bytes, "size_bytes") =
        static_cast<size_t>(magi::forward_workspace_bytes(read_problem(inputs), given));
  });
}

magi_status magi_block_attention_forward(const magi_block_mask* mask,
                                         const magi_attention_inputs* inputs,
                                         const magi_attention_result* result,
                                         const magi_workspace* workspace, void* stream) {
  return guarded([&] {
    const magi::BlockMask given = read_mask(mask, inputs);
    const magi::ForwardTuning tuning{.sm_margin = inputs->sm_margin};
    magi::attention_forward_cuda(read_forward(inputs, result), given, read_workspace(workspace),
                                 tuning, stream);
  });
}

magi_status magi_block_attention_backward(const magi_block_mask* mask,
                                          const magi_attention_inputs* inputs,
                                          const magi_attention_result* result,
                                          const magi_attention_gradients* gradients, void* stream) {
  return guarded([&] {
    const magi::BlockMask given = read_mask(mask, inputs);
    const magi::BackwardArgs args = read_backward(inputs, result, gradients);
    magi::attention_backward_cuda(
        args, given, read_workspace(gradients->workspace),
        {.sm_margin = inputs->sm_margin, .is_deterministic = inputs->is_fast_backward == 0},
        stream);
  });
}

magi_status magi_block_attention_backward_workspace_bytes(const magi_block_mask* mask,
                                                          const magi_attention_inputs* inputs,
                                                          const magi_attention_result* result,
                                                          const magi_attention_gradients* gradients,
                                                          size_t* size_bytes) {
  return guarded([&] {
    const magi::BlockMask given = read_mask(mask, inputs);
    const magi::BackwardArgs args = read_backward(inputs, result, gradients);
    const bool is_deterministic = inputs->is_fast_backward == 0;
    require(size_bytes, "size_bytes") =
        static_cast<size_t>(magi::backward_workspace_bytes(args, given, is_deterministic));
  });
}
