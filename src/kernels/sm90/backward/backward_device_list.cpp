// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <limits>

#include "base/check.hpp"
#include "cuda/arena.hpp"
#include "kernels/sm90/backward/backward.hpp"
#include "kernels/sm90/backward/void_gradients.hpp"
#include "kernels/sm90/conversions.hpp"

namespace magi::sm90 {
namespace {

std::int32_t packed_heads_of(const BackwardProblem& problem, std::int64_t num_slices,
                             const DeviceBackwardTuning& tuning) {
  const std::int32_t heads_per_kv = problem.heads_q / problem.heads_kv;
  const std::int32_t heads = tuning.packed_heads;
  if (heads == 0) return plain_packed_heads(problem, num_slices);
  const bool is_power = heads > 0 && std::has_single_bit(static_cast<unsigned>(heads));
  if (!is_power || heads > 16 || heads_per_kv % heads != 0) {
    throw invalid("packed_heads", heads,
                  "0 or powers of two up to 16 that divide heads_q / heads_kv");
  }
  return heads;
}

DeviceBackwardShape list_shape(const BackwardArgs& args, std::int64_t num_slices,
                               const BackwardState& state, const DeviceBackwardTuning& tuning) {
  if (num_slices < 0 || num_slices > std::numeric_limits<std::int32_t>::max()) {
    throw invalid("number of slices", num_slices, "0 to 2^31 - 1");
  }
  DeviceBackwardShape shape;
  shape.problem = backward_problem(args, count_walkers(state, args.q.device, tuning.sm_margin), {});
  shape.tile = tile_shape(state.instance->config);
  shape.packed_heads = packed_heads_of(shape.problem, num_slices, tuning);
  shape.num_slices = static_cast<std::int32_t>(num_slices);
  shape.may_be_unordered = !tuning.is_deterministic;
  shape.record_capacity =
      tuning.record_capacity == 0 ? default_record_capacity(shape) : tuning.record_capacity;
  return shape;
}

BackwardListOnDevice parts_of(void* workspace, const DeviceBackwardCall& call) {
  const DeviceBackwardLayout& layout = call.layout;
  auto* header = part_at<DeviceBackwardHeader>(workspace, 0);
  const bool may_be_unordered = call.shape.may_be_unordered;
  return {.tiles = part_at<const KeyTile>(workspace, layout.tiles),
          .records = part_at<const KeyRecord>(workspace, layout.records),
          .semaphore_runs = part_at<const SemaphoreRun>(workspace, layout.runs),
          .tile_components = part_at<const std::int32_t>(workspace, layout.tile_components),
          .tile_semaphores = part_at<const TileSemaphores>(workspace, layout.tile_semaphores),
          .outcome = &header->outcome,
          .order = part_at<const std::int32_t>(workspace, layout.items),
          .unordered = may_be_unordered ? &header->unordered : nullptr,
          .unordered_ticket = &header->unordered_ticket,
          .converted_tiles = part_at<const std::int32_t>(workspace, layout.converted_tiles),
          .seen_queries = part_at<const std::uint32_t>(workspace, layout.seen_queries),
          .seen_keys = part_at<const std::uint32_t>(workspace, layout.seen_keys),
          .is_under_way = true};
}

}  // namespace

DeviceBackwardCall device_backward_call(std::span<const BackwardInstance> instances,
                                        bool has_clusters, const BackwardArgs& args,
                                        std::int64_t num_slices,
                                        const DeviceBackwardTuning& tuning) {
  DeviceBackwardCall call{.state = backward_state(instances, args)};
  call.shape = list_shape(args, num_slices, call.state, tuning);
  call.shape.has_clusters = has_clusters;
  call.layout = device_backward_layout(call.shape);
  call.state.list = call.layout.frame;
  call.state.num_ctas =
      to_int(std::min<std::int64_t>(call.state.list.num_items(), call.shape.problem.num_ctas)) *
      call.state.instance->config.ctas();
  call.workspace_bytes =
      static_cast<std::int64_t>(call.layout.size_bytes + backward_layout(call.state).size_bytes);
  return call;
}

void enqueue_backward(const BackwardArgs& args, const DeviceBackwardCall& call,
                      const SliceArrays& slices, void* workspace, cudaStream_t stream) {
  build_device_backward_list(call.shape, call.layout, slices, workspace, stream);
  BackwardState state = call.state;
  state.parts = parts_of(workspace, call);
  enqueue_backward(args, state, part_at<std::byte>(workspace, call.layout.size_bytes), stream);
  enqueue_void_gradients(
      {.outcome = state.parts.outcome,
       .targets = {spoiled_rows(args.dq), spoiled_rows(args.dk), spoiled_rows(args.dv)}},
      stream);
}

}  // namespace magi::sm90
