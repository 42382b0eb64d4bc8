// SPDX-License-Identifier: Apache-2.0
#include "capi/device_attention.hpp"

#include "cuda/device.hpp"
#include "cuda/pool.hpp"

namespace magi::capi {
namespace {

WorkKey::Shape shape_of(const TensorView& tensor) {
  return {tensor.shape[0], tensor.shape[1], tensor.shape[2]};
}

/// Memory for what is enqueued on a stream while this lives.
class PoolWorkspace {
 public:
  PoolWorkspace(std::int64_t size_bytes, std::int32_t device, cudaStream_t stream)
      : stream_(stream),
        view_{pool_allocate(static_cast<std::size_t>(size_bytes), device, stream), size_bytes} {}
  ~PoolWorkspace() { pool_release(view_.data, stream_); }
  PoolWorkspace(const PoolWorkspace&) = delete;
  PoolWorkspace& operator=(const PoolWorkspace&) = delete;

  const DeviceWorkspace& view() const { return view_; }

 private:
  cudaStream_t stream_;
  DeviceWorkspace view_;
};

std::shared_ptr<const BackwardWork> backward_work(const magi_mask& mask, const BackwardArgs& args,
                                                  const BackwardTuning& tuning) {
  const WorkKey key{.q = shape_of(args.q),
                    .k = shape_of(args.k),
                    .v = shape_of(args.v),
                    .type = args.q.dtype,
                    .dout_type = args.dout.dtype,
                    .device = args.q.device,
                    .sm_margin = tuning.sm_margin,
                    .is_fast_backward = !tuning.is_deterministic};
  return mask.backward_works->find_or_make(key, [&] { return BackwardWork(args, tuning); });
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

void backward_on_device(const magi_mask& mask, const BackwardArgs& args,
                        const BackwardTuning& tuning, const DeviceWorkspace& workspace,
                        void* stream) {
  const auto work = backward_work(mask, args, tuning);
  if (workspace.data != nullptr) {
    attention_backward_cuda(args, *work, workspace, stream);
    return;
  }
  const DeviceScope scope(args.q.device);
  const PoolWorkspace own(work->workspace_bytes(), args.q.device,
                          static_cast<cudaStream_t>(stream));
  attention_backward_cuda(args, *work, own.view(), stream);
}

std::int64_t backward_workspace_bytes(const magi_mask& mask, const BackwardArgs& args,
                                      const BackwardTuning& tuning) {
  return backward_work(mask, args, tuning)->workspace_bytes();
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
