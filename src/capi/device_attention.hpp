// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "capi/handles.hpp"
#include "magi/attention_cuda.hpp"

// Attention on tensors in device memory. Where the library is built without CUDA each of these
// throws InvalidArgument saying so.
namespace magi::capi {

/// With the mask's cached work list; args.slices are the mask's.
void forward_on_device(const magi_mask& mask, const ForwardArgs& args, std::int32_t sm_margin,
                       void* stream);

/// Likewise, in `workspace`, or without one in the library's pool.
void backward_on_device(const magi_mask& mask, const BackwardArgs& args,
                        const BackwardTuning& tuning, const DeviceWorkspace& workspace,
                        void* stream);
std::int64_t backward_workspace_bytes(const magi_mask& mask, const BackwardArgs& args,
                                      const BackwardTuning& tuning);

std::int64_t ranges_workspace_bytes(const ForwardArgs& args, std::int64_t num_slices,
                                    const DeviceListTuning& tuning);
void forward_ranges(const ForwardArgs& args, const DeviceSlices& slices,
                    const DeviceWorkspace& workspace, const DeviceListTuning& tuning, void* stream);
DeviceListReport ranges_report_sync(const DeviceWorkspace& workspace, void* stream);

}  // namespace magi::capi
