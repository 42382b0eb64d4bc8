// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "base/check.hpp"
#include "cuda/arena.hpp"
#include "kernels/sm90/forward/forward.hpp"

namespace magi::sm90 {
namespace {

/// Splits that the list may have, of all heads: each has partial rows.
std::int64_t max_splits(const DeviceListShape& shape, const DeviceListLayout& layout) {
  const std::int32_t head_groups = layout.frame.head_groups;
  return std::int64_t{max_slots(shape.split, head_groups)} * head_groups;
}

DeviceListShape list_shape(const ForwardArgs& args, std::int64_t num_slices,
                           const ForwardInstance& instance, const DeviceListTuning& tuning) {
  if (num_slices < 0 || num_slices > std::numeric_limits<std::int32_t>::max()) {
    throw invalid("number of slices", num_slices, "0 to 2^31 - 1");
  }
  DeviceListShape shape;
  shape.problem = forward_problem(args);
  shape.tile = tile_shape(instance);
  shape.split = split_rule(args.q.device, tuning.forward);
  shape.num_slices = static_cast<std::int32_t>(num_slices);
  shape.packed_heads = tuning.forward.packed_heads > 0
                           ? tuning.forward.packed_heads
                           : device_packed_heads(shape.problem, shape.tile);
  shape.record_capacity =
      tuning.record_capacity == 0 ? default_record_capacity(shape) : tuning.record_capacity;
  return shape;
}

ListOnDevice parts_of(void* workspace, const DeviceListShape& shape, const DeviceListLayout& layout,
                      const ForwardArgs& args) {
  auto* header = part_at<DeviceListHeader>(workspace, 0);
  return {.tiles = part_at<const TileWork>(workspace, layout.works),
          .records = part_at<const BandRecord>(workspace, layout.records),
          .ticket = &header->ticket,
          .outcome = &header->outcome,
          .splits = part_at<const SplitTile>(workspace, layout.split_tiles),
          .partial = partial_rows(shape.tile, args.v.shape[2],
                                  part_at<std::byte>(workspace, layout.size_bytes),
                                  max_splits(shape, layout))};
}

/// The launch of the kernel; two where there is one without splits beside it, and the device
/// chooses as the host would.
void launch_frame(const ForwardArgs& args, const ForwardList& frame, ListOnDevice parts,
                  const InstanceSet& instances, std::int32_t num_ctas, bool may_have_splits,
                  cudaStream_t stream) {
  const FeatureSet features = feature_set_of(args);
  const bool has_two = may_have_splits && features == FeatureSet::Plain &&
                       instances.of(FeatureSet::AnyOut) != instances.of(features);
  if (has_two) parts.wanted = WantedList::WithoutSplits;
  launch_list(args, frame, parts, *instances.of(features), num_ctas, stream);
  if (!has_two) return;
  parts.wanted = WantedList::WithSplits;
  launch_list(args, frame, parts, *instances.of(FeatureSet::AnyOut), num_ctas, stream);
}

}  // namespace

DeviceListCall device_list_call(std::span<const ForwardInstance> instances, bool has_clusters,
                                const ForwardArgs& args, std::int64_t num_slices,
                                const DeviceListTuning& tuning) {
  DeviceListCall call{.instances = find_instances(instances, args), .tuning = tuning.forward};
  call.shape = list_shape(args, num_slices, *call.instances.of(FeatureSet::Plain), tuning);
  call.shape.has_clusters = has_clusters;
  call.layout = device_list_layout(call.shape);
  call.workspace_bytes =
      static_cast<std::int64_t>(call.layout.size_bytes) +
      partial_bytes(call.shape.tile, args.v.shape[2], max_splits(call.shape, call.layout));
  return call;
}

void enqueue_forward(const ForwardArgs& args, const DeviceListCall& call, const SliceArrays& slices,
                     void* workspace, cudaStream_t stream) {
  const DeviceListShape& shape = call.shape;
  const DeviceListLayout& layout = call.layout;
  fill_max_logits(args, stream);
  build_device_list(shape, layout, slices, workspace, stream);
  const ListOnDevice parts = parts_of(workspace, shape, layout, args);
  // The device says whether tiles are split: the other launch ends at once.
  const ForwardList& frame = layout.frame;
  if (frame.num_items() > 0) {
    const std::int64_t most_items = frame.num_items() + max_splits(shape, layout);
    const std::int32_t num_ctas =
        count_ctas(args.q.device, call.tuning, most_items,
                   call.instances.of(FeatureSet::Plain)->config.ctas_per_sm());
    launch_frame(args, frame, parts, call.instances, num_ctas, most_items > frame.num_items(),
                 stream);
  }
  if (args.q.shape[0] > 0 && layout.max_split_tiles > 0) {
    launch_combine(args, frame, parts, layout.max_split_tiles, stream);
  }
}

}  // namespace magi::sm90
