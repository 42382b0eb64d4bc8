// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/listed/listed_forward.hpp"

#include <algorithm>
#include <cstddef>

#include "base/check.hpp"
#include "cuda/check.hpp"
#include "kernels/sm90/conversions.hpp"
#include "kernels/sm90/listed/latent.hpp"
#include "kernels/sm90/listed/listed_arguments.hpp"
#include "kernels/sm90/poison.hpp"

namespace magi::sm90 {
namespace {

/// Enqueues a report without bad entries: number 0, and -1 as the place.
void clear_report(const KeyLists& lists, cudaStream_t stream) {
  if (lists.report.empty()) return;
  auto* words = static_cast<std::int64_t*>(lists.report.data);
  cuda_check(cudaMemsetAsync(words, 0, sizeof *words, stream), "cudaMemsetAsync");
  cuda_check(cudaMemsetAsync(words + 1, 0xff, sizeof *words, stream), "cudaMemsetAsync");
}

ListedForwardParams listed_params(const ForwardArgs& args, const KeyLists& lists) {
  ListedForwardParams params;
  params.q = strided_rows(args.q);
  params.k = strided_rows(args.k);
  params.v = strided_rows(args.v);
  params.lists = listed_indices(lists, args.k.shape[0]);
  params.out = strided_rows(args.out);
  params.lse = strided_rows(args.lse);
  params.sink = sink_rows(args.sink, args.params.sink_layout);
  params.max_logits = static_cast<float*>(args.max_logits.data);
  params.score = score_scale(args.params, args.q.shape[2]);
  return params;
}

StridedRows behind(StridedRows rows, std::int64_t first) {
  rows.data =
      static_cast<std::byte*>(rows.data) + first * rows.row_stride * (rows.is_float() ? 4 : 2);
  return rows;
}

/// Returns the parameters for queries [begin, end); a tile begins at `begin`.
ListedForwardParams part_of(ListedForwardParams params, std::int32_t begin, std::int32_t end) {
  ListedShape& shape = params.shape;
  shape.rows_q = end - begin;
  shape.query_tiles = (shape.rows_q + shape.queries - 1) / shape.queries;
  shape.num_items = shape.query_tiles * shape.heads_kv;
  for (StridedRows* rows : {&params.q, &params.out, &params.lse}) *rows = behind(*rows, begin);
  if (params.sink.count > 0) params.sink.data += begin * params.sink.row_stride;
  return params;
}

void launch(const ListedForwardCall& call, const ListedForwardParams& params, std::int32_t num_sms,
            cudaStream_t stream) {
  const ListedInstance& instance = *call.instance;
  instance.launch(params, std::min(num_sms * instance.config.ctas_per_sm, params.shape.num_items),
                  stream);
}

}  // namespace

ListedForwardCall listed_forward_call(const ForwardArgs& args, const KeyLists& lists) {
  ListedForwardCall call;
  if (args.q.num_elements() == 0) return call;
  call.params = listed_params(args, lists);
  const bool is_general = args.params.softcap > 0.0 || !args.max_logits.empty();
  const bool is_latent = has_latent_dims(args.q, args.v);
  if (!is_general && !is_latent) {
    call.joined = joined_layout(args.q, args.k, call.params.lists, 64);
  }
  call.instance =
      is_latent ? &latent_instance()
                : find_listed_instance({.type = args.q.dtype,
                                        .dim = to_int(std::max(args.q.shape[2], args.v.shape[2])),
                                        .heads = to_int(args.q.shape[1] / args.k.shape[1]),
                                        .is_general = is_general,
                                        .is_joined = call.joined.queries > 1});
  MAGI_CHECK(call.instance != nullptr);
  call.params.shape =
      listed_shape(args.q, args.k, args.v, call.instance->config.rows(), call.joined.queries);
  return call;
}

void enqueue_listed_forward(const ForwardArgs& args, const KeyLists& lists,
                            const ListedForwardCall& call, std::int32_t sm_margin, void* workspace,
                            cudaStream_t stream) {
  const std::int32_t num_sms = count_free_sms(args.q.device, sm_margin);
  clear_report(lists, stream);
  if (!args.max_logits.empty()) {
    fill_no_logits(static_cast<float*>(args.max_logits.data), to_int(args.q.shape[1]), stream);
  }
  if (call.instance == nullptr) return;
  ListedForwardParams params = call.params;
  if (params.shape.queries == 1) return launch(call, params, num_sms, stream);
  params.joined = joined_lists(call.joined, workspace);
  const std::int32_t rows_q = params.shape.rows_q;
  for (std::int32_t begin = 0; begin < rows_q; begin += call.joined.rows) {
    const std::int32_t end = std::min(begin + call.joined.rows, rows_q);
    enqueue_joined_lists(params.shape, params.lists, begin, end, params.joined, stream);
    launch(call, part_of(params, begin, end), num_sms, stream);
  }
}

}  // namespace magi::sm90
