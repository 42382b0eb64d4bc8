// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/listed/listed_backward.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "cuda/check.hpp"
#include "kernels/sm90/conversions.hpp"
#include "kernels/sm90/listed/large_rows.hpp"
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
          .delta = memory.delta,
          .corrections = memory.corrections};
}

ListedBackwardParams listed_params(const BackwardArgs& args, const KeyLists& lists,
                                   const ListedConfig& config, const ListedBackwardMemory& memory) {
  check_listed_heads("dout", args.dout);
  return {.shape = listed_shape(args.q, args.k, args.v, config.rows()),
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

}  // namespace

void enqueue_listed_backward(const BackwardArgs& args, const KeyLists& lists,
                             std::int32_t sm_margin, const ListedBackwardMemory& memory,
                             cudaStream_t stream) {
  const std::int32_t num_sms = count_free_sms(args.q.device, sm_margin);
  clear(memory.dk_sums, args.dk, stream);
  clear(memory.dv_sums, args.dv, stream);
  const ListedRowParams rows = row_params(args, memory);
  if (args.q.num_elements() == 0) return enqueue_sinks(args, rows, stream);
  const ListedBackwardInstance* instance = find_listed_backward_instance(
      args.q.dtype, to_int(std::max(args.q.shape[2], args.v.shape[2])),
      to_int(args.q.shape[1] / args.k.shape[1]));
  MAGI_CHECK(instance != nullptr);
  const ListedBackwardParams params = listed_params(args, lists, instance->config, memory);
  enqueue_listed_delta(rows, args.q.dtype, stream);
  const std::int32_t num_ctas =
      std::min(num_sms * instance->config.ctas_per_sm, params.shape.num_items);
  instance->launch(params, num_ctas, stream);
  ListedLargeRowParams large{.call = params, .rows = rows, .sink = {}};
  if (!args.sink.empty()) large.sink = sink_rows(args.sink, args.params.sink_layout);
  enqueue_listed_large_rows(large, args.q.dtype, num_sms, stream);
  enqueue_sinks(args, rows, stream);
}

}  // namespace magi::sm90
