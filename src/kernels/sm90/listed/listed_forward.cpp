// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/listed/listed_forward.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "cuda/check.hpp"
#include "kernels/sm90/conversions.hpp"
#include "kernels/sm90/listed/latent.hpp"
#include "kernels/sm90/listed/launch.hpp"
#include "kernels/sm90/listed/listed_arguments.hpp"
#include "kernels/sm90/poison.hpp"

namespace magi::sm90 {
namespace {

/// No bad entry: 0, and -1 as its place.
void clear_report(const KeyLists& lists, cudaStream_t stream) {
  if (lists.report.empty()) return;
  auto* words = static_cast<std::int64_t*>(lists.report.data);
  cuda_check(cudaMemsetAsync(words, 0, sizeof *words, stream), "cudaMemsetAsync");
  cuda_check(cudaMemsetAsync(words + 1, 0xff, sizeof *words, stream), "cudaMemsetAsync");
}

ListedForwardParams listed_params(const ForwardArgs& args, const KeyLists& lists,
                                  const ListedConfig& config) {
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
  params.shape = listed_shape(args.q, args.k, args.v, config.rows());
  return params;
}

}  // namespace

void enqueue_listed_forward(const ForwardArgs& args, const KeyLists& lists, std::int32_t sm_margin,
                            cudaStream_t stream) {
  const std::int32_t num_sms = count_free_sms(args.q.device, sm_margin);
  clear_report(lists, stream);
  if (!args.max_logits.empty()) {
    fill_no_logits(static_cast<float*>(args.max_logits.data), to_int(args.q.shape[1]), stream);
  }
  if (args.q.num_elements() == 0) return;
  const ListedInstance* instance =
      has_latent_dims(args.q, args.v)
          ? &latent_instance()
          : find_listed_instance(
                {.type = args.q.dtype,
                 .dim = to_int(std::max(args.q.shape[2], args.v.shape[2])),
                 .heads = to_int(args.q.shape[1] / args.k.shape[1]),
                 .is_general = args.params.softcap > 0.0 || !args.max_logits.empty()});
  MAGI_CHECK(instance != nullptr);
  const ListedForwardParams params = listed_params(args, lists, instance->config);
  const std::int32_t num_ctas =
      std::min(num_sms * instance->config.ctas_per_sm, params.shape.num_items);
  instance->launch(params, num_ctas, stream);
}

}  // namespace magi::sm90
