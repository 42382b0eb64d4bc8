// SPDX-License-Identifier: Apache-2.0
#include "base/check.hpp"
#include "kernels/attention/built_in.hpp"
#include "kernels/attention/combine.hpp"
#include "kernels/attention/supplied_device.hpp"
#include "magi/block_mask.hpp"
#include "magi/key_lists.hpp"

namespace magi {

const std::shared_ptr<const AttentionBackend>& sm90_backend() {
  static const std::shared_ptr<const AttentionBackend> none;
  return none;
}

const std::shared_ptr<const AttentionBackend>& mma_backend() { return sm90_backend(); }

void refuse_device(std::int32_t device) {
  throw invalid(
      "q.device", device,
      "-1 (host memory): this library is built without CUDA; try: a build where nvcc 13 is "
      "found");
}

std::int64_t forward_workspace_bytes(const ForwardArgs& args, std::int64_t /*num_slices*/,
                                     const DeviceListTuning& /*tuning*/) {
  refuse_device(args.q.device);
}

void attention_forward_cuda(const ForwardArgs& args, const DeviceSlices& /*slices*/,
                            const DeviceWorkspace& /*workspace*/,
                            const DeviceListTuning& /*tuning*/, void* /*stream*/) {
  refuse_device(args.q.device);
}

void attention_forward_cuda(const ForwardArgs& args, const KeyLists& /*lists*/,
                            std::int32_t /*sm_margin*/, void* /*stream*/) {
  refuse_device(args.q.device);
}

void attention_backward_cuda(const BackwardArgs& args, const KeyLists& /*lists*/,
                             const ListedBackwardTuning& /*tuning*/, void* /*stream*/) {
  refuse_device(args.q.device);
}

DeviceListReport read_device_list_report_sync(const DeviceWorkspace& /*workspace*/,
                                              void* /*stream*/) {
  throw InvalidArgument("this library is built without CUDA: no call has filled a workspace");
}

std::int64_t backward_workspace_bytes(const BackwardArgs& args, std::int64_t /*num_slices*/,
                                      const DeviceBackwardTuning& /*tuning*/) {
  refuse_device(args.q.device);
}

void attention_backward_cuda(const BackwardArgs& args, const DeviceSlices& /*slices*/,
                             const DeviceWorkspace& /*workspace*/,
                             const DeviceBackwardTuning& /*tuning*/, void* /*stream*/) {
  refuse_device(args.q.device);
}

DeviceListReport read_backward_list_report_sync(const DeviceWorkspace& /*workspace*/,
                                                void* /*stream*/) {
  throw InvalidArgument("this library is built without CUDA: no call has filled a workspace");
}

std::string block_mask_refusal(const ForwardArgs& args, const BlockMask& /*mask*/) {
  refuse_device(args.q.device);
}

std::int64_t forward_workspace_bytes(const ForwardArgs& args, const BlockMask& /*mask*/) {
  refuse_device(args.q.device);
}

void attention_forward_cuda(const ForwardArgs& args, const BlockMask& /*mask*/,
                            const DeviceWorkspace& /*workspace*/, const ForwardTuning& /*tuning*/,
                            void* /*stream*/) {
  refuse_device(args.q.device);
}

std::int64_t backward_workspace_bytes(const BackwardArgs& args, const BlockMask& /*mask*/,
                                      bool /*is_deterministic*/) {
  refuse_device(args.q.device);
}

void attention_backward_cuda(const BackwardArgs& args, const BlockMask& /*mask*/,
                             const DeviceWorkspace& /*workspace*/, const BackwardTuning& /*tuning*/,
                             void* /*stream*/) {
  refuse_device(args.q.device);
}

void combine_on_device(const TensorView& source, const TensorView& /*target*/, Combination /*how*/,
                       void* /*stream*/) {
  refuse_device(source.device);
}

void merge_on_device(const AttentionPart& part, const AttentionPart& /*sum*/, void* /*stream*/) {
  refuse_device(part.out.device);
}

void keep_with_capture(std::shared_ptr<const void> /*object*/, void* /*stream*/) {}

std::shared_ptr<void> take_device_memory(std::int64_t /*size_bytes*/, std::int32_t device,
                                         void* /*stream*/) {
  refuse_device(device);
}

}  // namespace magi
