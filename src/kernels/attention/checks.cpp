// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/checks.hpp"

#include <string>

#include "base/check.hpp"
#include "cuda/arena.hpp"

namespace magi {
namespace {

using Shape = AttentionProblem::Shape;

Shape shape_of(const TensorView& tensor) {
  return {tensor.shape[0], tensor.shape[1], tensor.shape[2]};
}

void check_made_for(const AttentionProblem& seen, const AttentionProblem& made_for) {
  if (seen == made_for) return;
  throw invalid("work", "for other shapes or types", "a list made for these tensors");
}

}  // namespace

AttentionProblem problem_of(const ForwardArgs& args) {
  return {.q = shape_of(args.q),
          .k = shape_of(args.k),
          .v = shape_of(args.v),
          .type = args.q.dtype,
          .device = args.q.device};
}

AttentionProblem problem_of(const BackwardArgs& args) {
  return {.q = shape_of(args.q),
          .k = shape_of(args.k),
          .v = shape_of(args.v),
          .type = args.q.dtype,
          .dout_type = args.dout.dtype,
          .device = args.q.device};
}

void check_call(const AttentionLimits& limits, const ForwardArgs& args,
                const AttentionProblem& made_for) {
  check_attention(limits, args, made_for.device);
  check_made_for(problem_of(args), made_for);
}

void check_call(const AttentionLimits& limits, const BackwardArgs& args,
                const AttentionProblem& made_for) {
  check_attention(limits, args, made_for.device);
  check_made_for(problem_of(args), made_for);
}

void check_workspace(const DeviceWorkspace& workspace, std::int64_t size_bytes) {
  if (workspace.data == nullptr) throw invalid("workspace.data", "null", "device memory");
  if (reinterpret_cast<std::uintptr_t>(workspace.data) % kArenaAlignment != 0) {
    throw invalid("workspace.data", workspace.data,
                  "multiples of " + std::to_string(kArenaAlignment));
  }
  if (workspace.size_bytes < size_bytes) {
    throw invalid("workspace.size_bytes", workspace.size_bytes,
                  std::to_string(size_bytes) + " or more");
  }
}

}  // namespace magi
