// SPDX-License-Identifier: Apache-2.0
#include "runtime/head_sections.hpp"

#include <algorithm>

namespace magi {

std::int32_t num_head_sections(const Plan& plan) {
  const auto is_of_all_rows = [](const Exchange& exchange) { return exchange.segment == 1; };
  if (plan.stages_in_flight == 0 || !std::ranges::all_of(plan.exchanges, is_of_all_rows)) return 1;
  // A plan that is read may have no stages, and more of them than heads.
  const auto num_stages = static_cast<std::int32_t>(
      std::ranges::count(plan.exchanges, Role::KeysValues, &Exchange::role));
  for (std::int32_t count = std::max(num_stages, 1); count <= plan.config.num_heads_kv; ++count) {
    if (plan.config.num_heads_kv % count == 0) return count;
  }
  return 1;
}

std::shared_ptr<const Plan> plan_of_section(const Plan& plan, std::int32_t num_sections) {
  PlanConfig config = plan.config;
  config.num_heads_q /= num_sections;
  config.num_heads_kv /= num_sections;
  config.work = WorkMode::Keys;
  config.overlap_degree = 0;
  config.max_exchange_bytes = 0;
  return std::make_shared<const Plan>(
      make_plan_on(plan.mask, config, plan.placement_q, plan.placement_k));
}

void for_each_section(const PassArgs& args, std::int32_t num_sections,
                      const std::function<void(const PassArgs&)>& body) {
  for (std::int32_t section = 0; section < num_sections; ++section) {
    const auto part = [&](const TensorView& tensor, std::int32_t axis) {
      if (tensor.rank == 0) return tensor;  // not given
      const std::int64_t count = tensor.shape[static_cast<std::size_t>(axis)] / num_sections;
      return tensor.slice(axis, section * count, (section + 1) * count);
    };
    const auto heads = [&](const TensorView& t) { return part(t, t.rank > 2 ? 1 : t.rank - 1); };
    const auto sinks = [&](const TensorView& t) { return part(t, t.rank - 1); };
    AttentionInputs inputs = args.inputs;
    inputs.q = heads(inputs.q);
    inputs.k = heads(inputs.k);
    inputs.v = heads(inputs.v);
    inputs.sink = sinks(inputs.sink);
    const AttentionResult result{.out = heads(args.result.out),
                                 .lse = heads(args.result.lse),
                                 .max_logits = heads(args.result.max_logits)};
    const auto& [dq, dk, dv, dsink] = args.input_gradients;
    body({.pass = args.pass,
          .inputs = inputs,
          .result = result,
          .output_gradients = {.dout = heads(args.output_gradients.dout),
                               .dlse = heads(args.output_gradients.dlse)},
          .input_gradients = {heads(dq), heads(dk), heads(dv), sinks(dsink)},
          .whole_out = args.result.out});
  }
}

}  // namespace magi
