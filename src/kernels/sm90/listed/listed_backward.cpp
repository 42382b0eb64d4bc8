// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/listed/listed_backward.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "cuda/arena.hpp"
#include "cuda/check.hpp"
#include "kernels/sm90/conversions.hpp"
#include "kernels/sm90/listed/latent.hpp"
#include "kernels/sm90/listed/launch.hpp"
#include "kernels/sm90/listed/listed_arguments.hpp"
#include "kernels/sm90/listed/prepare.hpp"

namespace magi::sm90 {
namespace {

ListedRowParams row_params(const BackwardArgs& args, const ListedBackwardMemory& memory) {
  return {.rows_q = to_int(args.q.shape[0]),
          .heads_q = to_int(args.q.shape[1]),
          .dim_v = to_int(args.v.shape[2]),
          .out = strided_rows(args.out),
          .dout = strided_rows(args.dout),
          .lse = strided_rows(args.lse),
          .dlse = args.dlse.empty() ? StridedRows{} : strided_rows(args.dlse),
          .delta = memory.delta};
}

ListedBackwardParams listed_params(const BackwardArgs& args, const KeyLists& lists,
                                   const ListedConfig& config, const ListedBackwardMemory& memory) {
  check_listed_heads("dout", args.dout);
  return {.shape = listed_shape(args.q, args.k, args.v, config.rows(),
                                config.is_joined ? memory.joined_layout.queries : 1),
          .q = strided_rows(args.q),
          .k = strided_rows(args.k),
          .v = strided_rows(args.v),
          .dout = strided_rows(args.dout),
          .lists = listed_indices(lists, args.k.shape[0]),
          .lse = strided_rows(args.lse),
          .delta = memory.delta,
          .dq = strided_rows(args.dq),
          .dk_sums = memory.dk_sums,
          .dv_sums = memory.dv_sums,
          .score = score_scale(args.params, args.q.shape[2])};
}

void clear(float* sums, const TensorView& like, cudaStream_t stream) {
  const auto count = static_cast<std::size_t>(like.num_elements());
  if (count == 0) return;
  cuda_check(cudaMemsetAsync(sums, 0, count * sizeof(float), stream), "cudaMemsetAsync");
}

void enqueue_sinks(const BackwardArgs& args, const ListedRowParams& rows, cudaStream_t stream) {
  if (args.sink.empty()) return;
  enqueue_listed_sink_gradient(rows, sink_rows(args.sink, args.params.sink_layout),
                               sink_rows(args.dsink, args.params.sink_layout), stream);
}

const ListedBackwardInstance& instance_for(const BackwardArgs& args, ListedForm form) {
  if (has_latent_dims(args.q, args.v)) return latent_backward_instance(form == ListedForm::Parts);
  const ListedBackwardInstance* instance = find_listed_backward_instance(
      args.q.dtype, to_int(std::max(args.q.shape[2], args.v.shape[2])),
      to_int(args.q.shape[1] / args.k.shape[1]), form);
  MAGI_CHECK(instance != nullptr);
  return *instance;
}

void launch(const ListedBackwardInstance& instance, const ListedBackwardParams& params,
            std::int32_t num_sms, cudaStream_t stream) {
  const std::int32_t num_ctas =
      std::min(num_sms * instance.config.ctas_per_sm, params.shape.num_items);
  instance.launch(params, num_ctas, stream);
}

/// Cuts the arguments to queries [begin, end).
void take_rows(BackwardArgs& args, KeyLists& lists, std::int64_t begin, std::int64_t end) {
  for (TensorView* tensor : {&args.q, &args.dout, &args.lse, &args.dq, &lists.indices}) {
    *tensor = tensor->slice(0, begin, end);
  }
}

/// Launches the main kernel and the sums of keys for each run of queries.
void launch_in_order(const BackwardArgs& args, const KeyLists& lists, std::int32_t num_sms,
                     const ListedBackwardMemory& memory, const OrderedKeySums& sums,
                     cudaStream_t stream) {
  const ListedBackwardInstance& instance = instance_for(args, ListedForm::Parts);
  const std::int64_t rows_q = args.q.shape[0];
  for (std::int64_t begin = 0; begin < rows_q; begin += sums.shape.rows_q) {
    const std::int64_t end = std::min(begin + sums.shape.rows_q, rows_q);
    BackwardArgs own = args;
    KeyLists own_lists = lists;
    take_rows(own, own_lists, begin, end);
    const ListedBackwardMemory own_memory{.delta = memory.delta + begin * args.q.shape[1],
                                          .dk_sums = part_at<float>(memory.parts, sums.layout.dk),
                                          .dv_sums = part_at<float>(memory.parts, sums.layout.dv)};
    const ListedBackwardParams params = listed_params(own, own_lists, instance.config, own_memory);
    launch(instance, params, num_sms, stream);
    KeyPartShape shape = sums.shape;
    shape.rows_q = to_int(end - begin);
    enqueue_key_part_sums(shape, sums.layout, params.lists, memory.parts,
                          {memory.dk_sums, memory.dv_sums}, stream);
  }
}

/// Launches the main kernel with joined lists for each run of queries.
void launch_joined(const BackwardArgs& args, const KeyLists& lists, std::int32_t num_sms,
                   const ListedBackwardMemory& memory, cudaStream_t stream) {
  const ListedBackwardInstance& instance = instance_for(args, ListedForm::Joined);
  const JoinedLayout& layout = memory.joined_layout;
  const auto rows_q = to_int(args.q.shape[0]);
  for (std::int32_t begin = 0; begin < rows_q; begin += layout.rows) {
    const std::int32_t end = std::min(begin + layout.rows, rows_q);
    BackwardArgs own = args;
    KeyLists own_lists = lists;
    own_lists.report = {};
    take_rows(own, own_lists, begin, end);
    ListedBackwardMemory own_memory = memory;
    own_memory.delta += begin * args.q.shape[1];
    ListedBackwardParams params = listed_params(own, own_lists, instance.config, own_memory);
    params.joined = joined_lists(layout, memory.joined);
    enqueue_joined_lists(params.shape, params.lists, 0, end - begin, params.joined, stream);
    launch(instance, params, num_sms, stream);
  }
}

}  // namespace

JoinedLayout joined_layout_of(const BackwardArgs& args, const KeyLists& lists) {
  if (has_latent_dims(args.q, args.v)) return {};
  const std::int32_t tile_rows = instance_for(args, ListedForm::Joined).config.rows();
  const JoinedLayout layout =
      joined_layout(args.q, args.k, listed_indices(lists, args.k.shape[0]), tile_rows);
  // Kernels for one list at a time have tiles of half as many rows.
  const bool is_filled = layout.queries * (args.q.shape[1] / args.k.shape[1]) > tile_rows / 2;
  return is_filled ? layout : JoinedLayout{};
}

OrderedKeySums key_parts_of(const BackwardArgs& args, const KeyLists& lists) {
  const ListedConfig& config = instance_for(args, ListedForm::Parts).config;
  const ListedShape shape = listed_shape(args.q, args.k, args.v, config.rows());
  OrderedKeySums sums;
  sums.shape = with_rows({.head_groups = shape.head_groups,
                          .num_positions = listed_indices(lists, args.k.shape[0]).num_positions,
                          .heads_kv = shape.heads_kv,
                          .rows_k = to_int(args.k.shape[0]),
                          .dim_qk = shape.dim_qk,
                          .dim_v = has_latent_dims(args.q, args.v) ? 0 : shape.dim_v},
                         args.q.shape[0]);
  sums.layout = key_part_layout(sums.shape);
  return sums;
}

void enqueue_listed_backward(const BackwardArgs& args, const KeyLists& lists,
                             std::int32_t sm_margin, const ListedBackwardMemory& memory,
                             const OrderedKeySums* sums, cudaStream_t stream) {
  const std::int32_t num_sms = count_free_sms(args.q.device, sm_margin);
  clear(memory.dk_sums, args.dk, stream);
  if (memory.dv_sums != nullptr) clear(memory.dv_sums, args.dv, stream);
  const ListedRowParams rows = row_params(args, memory);
  if (args.q.num_elements() == 0) return enqueue_sinks(args, rows, stream);
  enqueue_listed_delta(rows, args.q.dtype, stream);
  if (sums != nullptr) {
    launch_in_order(args, lists, num_sms, memory, *sums, stream);
  } else if (memory.joined_layout.queries > 1) {
    launch_joined(args, lists, num_sms, memory, stream);
  } else {
    const ListedBackwardInstance& instance = instance_for(args, ListedForm::Plain);
    launch(instance, listed_params(args, lists, instance.config, memory), num_sms, stream);
  }
  enqueue_sinks(args, rows, stream);
}

}  // namespace magi::sm90
