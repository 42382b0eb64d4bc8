// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include "base/check.hpp"
#include "cuda/device.hpp"
#include "kernels/sm90/checks.hpp"
#include "kernels/sm90/forward/forward.hpp"
#include "kernels/worklist/device_list.hpp"

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

/// Partial rows of all pieces that any packing may have.
std::int64_t max_partials(const DeviceListShape& shape, const DeviceListLayout& layout) {
  std::int64_t most = 0;
  for (const ForwardList& frame : layout.frames) {
    most =
        std::max(most, std::int64_t{max_slots(shape.split, frame.head_groups)} * frame.head_groups);
  }
  return most;
}

std::size_t workspace_bytes(const DeviceListShape& shape, const DeviceListLayout& layout,
                            const ForwardArgs& args) {
  return layout.size_bytes + sm90::partial_bytes(shape.tile, args, max_partials(shape, layout));
}

DeviceListShape list_shape(const ForwardArgs& args, std::int64_t num_slices,
                           const sm90::ForwardInstance& instance, const DeviceListTuning& tuning) {
  if (num_slices < 0 || num_slices > std::numeric_limits<std::int32_t>::max()) {
    throw invalid("number of slices", num_slices, "0 to 2^31 - 1");
  }
  DeviceListShape shape;
  shape.problem = sm90::forward_problem(args);
  shape.tile = sm90::tile_shape(instance);
  shape.split = sm90::split_rule(args.q.device, tuning.forward);
  shape.num_slices = static_cast<std::int32_t>(num_slices);
  if (tuning.forward.packed_heads > 0) {
    shape.packings = {tuning.forward.packed_heads};
  } else {
    shape.packings = allowed_packed_heads(shape.problem, shape.tile);
  }
  shape.record_capacity =
      tuning.record_capacity == 0 ? default_record_capacity(shape) : tuning.record_capacity;
  return shape;
}

template <typename Element>
Element* part_at(const DeviceWorkspace& workspace, std::size_t offset) {
  return reinterpret_cast<Element*>(static_cast<std::byte*>(workspace.data) + offset);
}

sm90::ListOnDevice parts_of(const DeviceWorkspace& workspace, const DeviceListShape& shape,
                            const DeviceListLayout& layout, const ForwardArgs& args) {
  auto* header = part_at<DeviceListHeader>(workspace, 0);
  return {.tiles = part_at<const TileWork>(workspace, layout.works),
          .records = part_at<const BandRecord>(workspace, layout.records),
          .ticket = &header->ticket,
          .outcome = &header->outcome,
          .splits = part_at<const SplitTile>(workspace, layout.split_tiles),
          .partial =
              sm90::partial_rows(shape.tile, args, part_at<std::byte>(workspace, layout.size_bytes),
                                 max_partials(shape, layout))};
}

/// The launch for one packing; two where the device chooses between kernels with and without
/// pieces, as the host would.
void launch_frame(const ForwardArgs& args, const ForwardList& frame, sm90::ListOnDevice parts,
                  const sm90::InstanceSet& instances, std::int32_t num_ctas, bool may_have_pieces,
                  cudaStream_t stream) {
  const sm90::FeatureSet features = sm90::feature_set_of(args);
  const bool is_plain = features == sm90::FeatureSet::Plain;
  if (is_plain && may_have_pieces) {
    parts.wanted = sm90::WantedList::WithSplits;
    sm90::launch_list(args, frame, parts, *instances.of(sm90::FeatureSet::AnyOut), num_ctas,
                      stream);
    parts.wanted = sm90::WantedList::WithoutSplits;
  }
  sm90::launch_list(args, frame, parts, *instances.of(features), num_ctas, stream);
}

}  // namespace

std::int64_t forward_workspace_bytes(const ForwardArgs& args, std::int64_t num_slices,
                                     const DeviceListTuning& tuning) {
  const sm90::InstanceSet instances = sm90::find_instances(args);
  const DeviceListShape shape =
      list_shape(args, num_slices, *instances.of(sm90::FeatureSet::Plain), tuning);
  return static_cast<std::int64_t>(workspace_bytes(shape, device_list_layout(shape), args));
}

void attention_forward_cuda(const ForwardArgs& args, const DeviceSlices& slices,
                            const DeviceWorkspace& workspace, const DeviceListTuning& tuning,
                            void* stream) {
  sm90::check_forward_call(args, args.q.device);
  const SliceArrays arrays = check_slices(slices, args.q.device);
  const DeviceScope scope(args.q.device);
  const sm90::InstanceSet instances = sm90::find_instances(args);
  const DeviceListShape shape =
      list_shape(args, arrays.count, *instances.of(sm90::FeatureSet::Plain), tuning);
  const DeviceListLayout layout = device_list_layout(shape);
  sm90::check_workspace(workspace, static_cast<std::int64_t>(workspace_bytes(shape, layout, args)));
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  sm90::fill_max_logits(args, cuda_stream);
  build_device_list(shape, layout, arrays, workspace.data, cuda_stream);
  const sm90::ListOnDevice parts = parts_of(workspace, shape, layout, args);
  // The device chooses the packing: all launches but the chosen one end at once.
  for (const ForwardList& frame : layout.frames) {
    if (frame.num_items() == 0) continue;
    const std::int64_t most_items =
        frame.num_items() +
        std::int64_t{max_slots(shape.split, frame.head_groups)} * frame.head_groups;
    const std::int32_t num_ctas = sm90::count_ctas(args.q.device, tuning.forward, most_items);
    launch_frame(args, frame, parts, instances, num_ctas, most_items > frame.num_items(),
                 cuda_stream);
  }
  if (args.q.shape[0] > 0 && layout.max_split_tiles > 0) {
    sm90::launch_combine(args, layout.frames.front(), parts, layout.max_split_tiles, cuda_stream);
  }
}

DeviceListReport read_device_list_report_sync(const DeviceWorkspace& workspace, void* stream) {
  if (workspace.data == nullptr) throw invalid("workspace.data", "null", "device memory");
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  DeviceListHeader header;
  cuda_check(
      cudaMemcpyAsync(&header, workspace.data, sizeof header, cudaMemcpyDeviceToHost, cuda_stream),
      "cudaMemcpyAsync");
  cuda_check(cudaStreamSynchronize(cuda_stream), "cudaStreamSynchronize");
  DeviceListReport report;
  report.is_overflowing = header.is_overflowing != 0;
  report.num_records = static_cast<std::int64_t>(header.num_records);
  report.packed_heads = header.outcome.packed_heads;
  report.num_pieces = header.outcome.num_slots * header.outcome.head_groups;
  if (header.bad_slice != 0) {
    static constexpr std::array<const char*, 6> kFields = {
        "", "q_ranges[0]", "q_ranges[1]", "k_ranges[0]", "k_ranges[1]", "types"};
    const BadSliceField bad = bad_slice_of(header.bad_slice);
    report.first_bad = {bad.index, kFields[static_cast<std::size_t>(bad.field)]};
  }
  return report;
}

}  // namespace magi
