// SPDX-License-Identifier: Apache-2.0
#include "base/check.hpp"
#include "kernels/attention/backend.hpp"
#include "kernels/attention/checks.hpp"

// The public form of prepared problems on GPUs.
namespace magi {
namespace {

std::shared_ptr<const AttentionBackend> backend_of(const TensorView& q) {
  if (q.device < 0) throw invalid("q.device", q.device, "a CUDA ordinal");
  return find_backend("", q.device);
}

}  // namespace

ForwardWork::ForwardWork(const ForwardArgs& args, const ForwardTuning& tuning)
    : prepared_(backend_of(args.q)->prepare_forward(args, tuning)) {}

ForwardWork::~ForwardWork() = default;
ForwardWork::ForwardWork(ForwardWork&&) noexcept = default;
ForwardWork& ForwardWork::operator=(ForwardWork&&) noexcept = default;

std::int32_t ForwardWork::packed_heads() const { return prepared_->tiling().packed_heads; }
std::int32_t ForwardWork::num_pieces() const { return prepared_->tiling().num_pieces; }
std::int64_t ForwardWork::size_bytes() const { return prepared_->size_bytes(); }

void attention_forward_cuda(const ForwardArgs& args, const ForwardWork& work, void* stream) {
  work.prepared().run(args, {}, stream);
}

BackwardWork::BackwardWork(const BackwardArgs& args, const BackwardTuning& tuning)
    : prepared_(backend_of(args.q)->prepare_backward(args, tuning)) {}

BackwardWork::~BackwardWork() = default;
BackwardWork::BackwardWork(BackwardWork&&) noexcept = default;
BackwardWork& BackwardWork::operator=(BackwardWork&&) noexcept = default;

std::int32_t BackwardWork::packed_heads() const { return prepared_->tiling().packed_heads; }
std::int32_t BackwardWork::heads_per_item() const { return prepared_->tiling().heads_per_item; }
std::int64_t BackwardWork::size_bytes() const { return prepared_->size_bytes(); }
std::int64_t BackwardWork::workspace_bytes() const { return prepared_->workspace_bytes(); }

void attention_backward_cuda(const BackwardArgs& args, const BackwardWork& work,
                             const DeviceWorkspace& workspace, void* stream) {
  check_workspace(workspace, work.workspace_bytes());
  work.prepared().run(args, workspace, stream);
}

}  // namespace magi
