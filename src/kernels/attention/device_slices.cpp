// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <limits>
#include <optional>
#include <string>

#include "base/check.hpp"
#include "cuda/device.hpp"
#include "kernels/attention/checks.hpp"
#include "kernels/attention/kernel_family.hpp"
#include "kernels/sm90/backward/backward.hpp"
#include "kernels/sm90/forward/forward.hpp"

// Calls whose slices are in device memory.
namespace magi {
namespace {

void check_slice_tensor(const char* name, const TensorView& tensor, std::int64_t count,
                        std::int32_t device) {
  const std::string prefix(name);
  const bool is_pairs = tensor.rank == 2 && tensor.shape[1] == 2;
  if (prefix == "types" ? tensor.rank != 1 : !is_pairs) {
    throw invalid(prefix + ".rank", tensor.rank, "[slices, 2] for ranges, [slices] for types");
  }
  if (tensor.dtype != DType::Int32) {
    throw invalid(prefix + ".dtype", dtype_name(tensor.dtype), "int32");
  }
  if (tensor.shape[0] != count) {
    throw invalid(prefix + ".shape[0]", tensor.shape[0],
                  "the number of slices " + std::to_string(count));
  }
  if (count == 0) return;
  if (tensor.empty()) throw invalid(prefix + ".data", "null", "device memory");
  if (tensor.device != device) {
    throw invalid(prefix + ".device", tensor.device, "that of q, " + std::to_string(device));
  }
  const std::int64_t row = is_pairs ? 2 : 1;
  const bool has_gaps =
      (count > 1 && tensor.stride[0] != row) || (is_pairs && tensor.stride[1] != 1);
  if (has_gaps) throw invalid(prefix + ".stride[0]", tensor.stride[0], "contiguous tensors");
}

SliceArrays check_slices(const DeviceSlices& slices, std::int32_t device) {
  const std::int64_t count = slices.q_ranges.shape[0];
  check_slice_tensor("q_ranges", slices.q_ranges, count, device);
  check_slice_tensor("k_ranges", slices.k_ranges, count, device);
  if (!slices.types.empty()) check_slice_tensor("types", slices.types, count, device);
  if (count > std::numeric_limits<std::int32_t>::max()) {
    throw invalid("q_ranges.shape[0]", count, "up to 2^31 - 1");
  }
  return {static_cast<const std::int32_t*>(slices.q_ranges.data),
          static_cast<const std::int32_t*>(slices.k_ranges.data),
          static_cast<const std::int32_t*>(slices.types.data), static_cast<std::int32_t>(count)};
}

/// Throws InvalidArgument naming what the kernels do not take.
sm90::DeviceListCall make_call(const KernelFamily& family, const ForwardArgs& args,
                               std::int64_t num_slices, const DeviceListTuning& tuning) {
  check_problem(family.limits, args);
  return sm90::device_list_call(family.forward, family.has_clusters, args, num_slices, tuning);
}

sm90::DeviceBackwardCall make_call(const KernelFamily& family, const BackwardArgs& args,
                                   std::int64_t num_slices, const DeviceBackwardTuning& tuning) {
  check_problem(family.backward_limits, args);
  const DeviceScope scope(args.q.device);
  return sm90::device_backward_call(family.backward, family.has_clusters, args, num_slices, tuning);
}

template <typename Header>
Header read_header_sync(const DeviceWorkspace& workspace, void* stream) {
  if (workspace.data == nullptr) throw invalid("workspace.data", "null", "device memory");
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  Header header;
  cuda_check(
      cudaMemcpyAsync(&header, workspace.data, sizeof header, cudaMemcpyDeviceToHost, cuda_stream),
      "cudaMemcpyAsync");
  cuda_check(cudaStreamSynchronize(cuda_stream), "cudaStreamSynchronize");
  return header;
}

std::optional<DeviceListReport::BadSlice> first_bad_of(std::uint64_t word) {
  if (word == 0) return std::nullopt;
  static constexpr std::array<const char*, 6> kFields = {
      "", "q_ranges[0]", "q_ranges[1]", "k_ranges[0]", "k_ranges[1]", "types"};
  const BadSliceField bad = bad_slice_of(word);
  return DeviceListReport::BadSlice{bad.index, kFields[static_cast<std::size_t>(bad.field)]};
}

}  // namespace

std::int64_t forward_workspace_bytes(const ForwardArgs& args, std::int64_t num_slices,
                                     const DeviceListTuning& tuning) {
  const KernelFamily& family = kernels_on(tuning.backend, args.q.device);
  return make_call(family, args, num_slices, tuning).workspace_bytes;
}

void attention_forward_cuda(const ForwardArgs& args, const DeviceSlices& slices,
                            const DeviceWorkspace& workspace, const DeviceListTuning& tuning,
                            void* stream) {
  const KernelFamily& family = kernels_on(tuning.backend, args.q.device);
  check_attention(family.limits, args, args.q.device);
  const SliceArrays arrays = check_slices(slices, args.q.device);
  const sm90::DeviceListCall call = make_call(family, args, arrays.count, tuning);
  check_workspace(workspace, call.workspace_bytes);
  const DeviceScope scope(args.q.device);
  sm90::enqueue_forward(args, call, arrays, workspace.data, static_cast<cudaStream_t>(stream));
}

DeviceListReport read_device_list_report_sync(const DeviceWorkspace& workspace, void* stream) {
  const auto header = read_header_sync<DeviceListHeader>(workspace, stream);
  DeviceListReport report;
  report.first_bad = first_bad_of(header.bad_slice);
  report.is_overflowing = header.is_overflowing != 0;
  report.num_records = static_cast<std::int64_t>(header.num_records);
  report.packed_heads = header.outcome.packed_heads;
  report.num_pieces = header.outcome.num_slots * header.outcome.head_groups;
  return report;
}

std::int64_t backward_workspace_bytes(const BackwardArgs& args, std::int64_t num_slices,
                                      const DeviceBackwardTuning& tuning) {
  const KernelFamily& family = kernels_on(tuning.backend, args.q.device);
  return make_call(family, args, num_slices, tuning).workspace_bytes;
}

void attention_backward_cuda(const BackwardArgs& args, const DeviceSlices& slices,
                             const DeviceWorkspace& workspace, const DeviceBackwardTuning& tuning,
                             void* stream) {
  const KernelFamily& family = kernels_on(tuning.backend, args.q.device);
  check_attention(family.backward_limits, args, args.q.device);
  const SliceArrays arrays = check_slices(slices, args.q.device);
  const sm90::DeviceBackwardCall call = make_call(family, args, arrays.count, tuning);
  check_workspace(workspace, call.workspace_bytes);
  const DeviceScope scope(args.q.device);
  sm90::enqueue_backward(args, call, arrays, workspace.data, static_cast<cudaStream_t>(stream));
}

DeviceListReport read_backward_list_report_sync(const DeviceWorkspace& workspace, void* stream) {
  const auto header = read_header_sync<DeviceBackwardHeader>(workspace, stream);
  DeviceListReport report;
  report.first_bad = first_bad_of(header.bad_slice);
  report.is_overflowing = header.outcome.is_overflowing != 0;
  report.num_records = header.outcome.num_records;
  report.packed_heads = header.packed_heads;
  return report;
}

}  // namespace magi
