// SPDX-License-Identifier: Apache-2.0
#include "capi/device_attention.hpp"

namespace magi::capi {
namespace {

WorkKey::Shape shape_of(const TensorView& tensor) {
  return {tensor.shape[0], tensor.shape[1], tensor.shape[2]};
}

}  // namespace

void forward_on_device(const magi_mask& mask, const ForwardArgs& args, std::int32_t sm_margin,
                       void* stream) {
  const WorkKey key{.q = shape_of(args.q),
                    .k = shape_of(args.k),
                    .v = shape_of(args.v),
                    .type = args.q.dtype,
                    .device = args.q.device,
                    .sm_margin = sm_margin};
  const auto work = mask.forward_works->find_or_make(
      key, [&] { return ForwardWork(args, {.sm_margin = sm_margin}); });
  attention_forward_cuda(args, *work, stream);
}

std::int64_t ranges_workspace_bytes(const ForwardArgs& args, std::int64_t num_slices,
                                    const DeviceListTuning& tuning) {
  return forward_workspace_bytes(args, num_slices, tuning);
}

void forward_ranges(const ForwardArgs& args, const DeviceSlices& slices,
                    const DeviceWorkspace& workspace, const DeviceListTuning& tuning,
                    void* stream) {
  attention_forward_cuda(args, slices, workspace, tuning, stream);
}

DeviceListReport ranges_report_sync(const DeviceWorkspace& workspace, void* stream) {
  return read_device_list_report_sync(workspace, stream);
}

}  // namespace magi::capi
