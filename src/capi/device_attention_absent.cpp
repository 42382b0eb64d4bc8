// SPDX-License-Identifier: Apache-2.0
#include "capi/device_attention.hpp"

namespace magi::capi {
namespace {

[[noreturn]] void refuse(std::int32_t device) {
  throw invalid("q.device", device, "-1 (host memory): this library is built without CUDA");
}

}  // namespace

void forward_on_device(const magi_mask& /*mask*/, const ForwardArgs& args,
                       std::int32_t /*sm_margin*/, void* /*stream*/) {
  refuse(args.q.device);
}

void backward_on_device(const magi_mask& /*mask*/, const BackwardArgs& args,
                        const BackwardTuning& /*tuning*/, const DeviceWorkspace& /*workspace*/,
                        void* /*stream*/) {
  refuse(args.q.device);
}

std::int64_t backward_workspace_bytes(const magi_mask& /*mask*/, const BackwardArgs& args,
                                      const BackwardTuning& /*tuning*/) {
  refuse(args.q.device);
}

std::int64_t ranges_workspace_bytes(const ForwardArgs& args, std::int64_t /*num_slices*/,
                                    const DeviceListTuning& /*tuning*/) {
  refuse(args.q.device);
}

void forward_ranges(const ForwardArgs& args, const DeviceSlices& /*slices*/,
                    const DeviceWorkspace& /*workspace*/, const DeviceListTuning& /*tuning*/,
                    void* /*stream*/) {
  refuse(args.q.device);
}

DeviceListReport ranges_report_sync(const DeviceWorkspace& /*workspace*/, void* /*stream*/) {
  throw InvalidArgument("this library is built without CUDA: no call has filled a workspace");
}

}  // namespace magi::capi
