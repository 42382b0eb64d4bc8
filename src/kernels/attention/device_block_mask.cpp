// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <string>
#include <utility>

#include "base/check.hpp"
#include "cuda/device.hpp"
#include "kernels/attention/built_in.hpp"
#include "kernels/attention/checks.hpp"
#include "kernels/sm90/backward/blocks/backward_blocks.hpp"
#include "kernels/sm90/forward/forward_blocks.hpp"

// Calls under a mask of blocks in device memory. One architecture takes them so far.
namespace magi {
namespace {

void check_limit(const char* name, std::int64_t value) {
  if (value < 0 || value > std::numeric_limits<std::int32_t>::max()) {
    throw invalid(name, value, "0 to 2^31 - 1");
  }
}

/// Throws for mistakes that no kernel takes.
void check_mask(const TensorView& q, const TensorView& k, const BlockMask& mask) {
  constexpr std::int32_t kMostRows = 256;
  for (const auto& [name, rows] : {std::pair{"q_block", mask.q_block}, {"k_block", mask.k_block}}) {
    if (rows < 1 || rows > kMostRows) throw invalid(name, rows, "1 to 256");
  }
  if (mask.heads != 1 && mask.heads != k.shape[1]) {
    throw invalid("heads of the block mask", mask.heads,
                  "1, or the kv heads " + std::to_string(k.shape[1]));
  }
  if (mask.device != q.device) {
    throw invalid("device of the block mask", mask.device,
                  "that of q, " + std::to_string(q.device));
  }
  check_limit("max_blocks", mask.max_blocks);
  check_limit("max_runs", mask.max_runs);
}

void check_visible(const TensorView& q, const TensorView& k, const BlockMask& mask) {
  if (mask.visible == nullptr && q.shape[0] > 0 && k.shape[0] > 0) {
    throw invalid("visible", "null", "device memory");
  }
}

/// Throws InvalidArgument naming what is not allowed.
sm90::BlockBackwardCall make_call(const BackwardArgs& args, const BlockMask& mask,
                                  const BackwardTuning& tuning) {
  if (!sm90_backend()->serves(args.q.device)) refuse_device(args.q.device);
  check_problem(sm90_backend()->limits(), args);
  check_mask(args.q, args.k, mask);
  return sm90::block_backward_call(args, mask, tuning);
}

/// Throws InvalidArgument naming what is not allowed.
sm90::BlockCall make_call(const ForwardArgs& args, const BlockMask& mask,
                          const ForwardTuning& tuning) {
  const std::string refusal = block_mask_refusal(args, mask);
  if (!refusal.empty()) throw InvalidArgument(refusal);
  return sm90::block_call(args, mask, tuning);
}

}  // namespace

std::string block_mask_refusal(const ForwardArgs& args, const BlockMask& mask) {
  if (!sm90_backend()->serves(args.q.device)) refuse_device(args.q.device);
  check_problem(sm90_backend()->limits(), args);
  check_mask(args.q, args.k, mask);
  return sm90::refusal_of_blocks(args, mask);
}

std::int64_t forward_workspace_bytes(const ForwardArgs& args, const BlockMask& mask) {
  return static_cast<std::int64_t>(make_call(args, mask, {}).walk.layout.size_bytes);
}

void attention_forward_cuda(const ForwardArgs& args, const BlockMask& mask,
                            const DeviceWorkspace& workspace, const ForwardTuning& tuning,
                            void* stream) {
  check_attention(sm90_backend()->limits(), args, args.q.device);
  const sm90::BlockCall call = make_call(args, mask, tuning);
  check_visible(args.q, args.k, mask);
  check_workspace(workspace, static_cast<std::int64_t>(call.walk.layout.size_bytes));
  const DeviceScope scope(args.q.device);
  sm90::enqueue_forward(args, call, {mask.visible, mask.error_word}, workspace.data,
                        static_cast<cudaStream_t>(stream));
}

std::int64_t backward_workspace_bytes(const BackwardArgs& args, const BlockMask& mask,
                                      bool is_deterministic) {
  return make_call(args, mask, {.is_deterministic = is_deterministic}).workspace_bytes;
}

void attention_backward_cuda(const BackwardArgs& args, const BlockMask& mask,
                             const DeviceWorkspace& workspace, const BackwardTuning& tuning,
                             void* stream) {
  check_attention(sm90_backend()->limits(), args, args.q.device);
  const sm90::BlockBackwardCall call = make_call(args, mask, tuning);
  check_visible(args.q, args.k, mask);
  check_workspace(workspace, call.workspace_bytes);
  const DeviceScope scope(args.q.device);
  sm90::enqueue_backward(args, call, {mask.visible, mask.error_word}, workspace.data,
                         static_cast<cudaStream_t>(stream));
}

}  // namespace magi
