// SPDX-License-Identifier: Apache-2.0
// Exact causal attention over three packed documents, sharded over four ranks (threads here).
#include <algorithm>
#include <iostream>

#include "magi/mask_builders.hpp"
#include "magi/runtime.hpp"

int main() {
  const std::vector<std::int32_t> documents{0, 700, 1500, 4096};
  const auto mask = magi::mask_from_cu_seqlens(documents, documents, {.is_causal = true});
  const magi::PlanConfig config{
      .num_ranks = 4, .num_heads_q = 8, .num_heads_kv = 2, .element_bytes = 4};
  const auto plan = std::make_shared<const magi::Plan>(magi::make_plan(mask, config));
  magi::run_ranks(4, [&](magi::Communicator& ranks) {
    const std::int64_t rows = plan->placement_q.rows_of(ranks.rank());
    magi::HostTensor<float> q({rows, 8, 128}), k({rows, 2, 128}), v({rows, 2, 128});
    magi::HostTensor<float> out({rows, 8, 128}), lse({rows, 8});
    std::ranges::fill(v.elements(), 1.0f);  // every output is then a mean of ones
    magi::DistributedAttention attention(plan, ranks);
    attention.forward({.q = q, .k = k, .v = v}, {.out = out, .lse = lse});
    if (ranks.rank() == 0) std::cout << "out[0] = " << out.elements()[0] << '\n';
  });
  std::cout << magi::describe(*plan);
}
