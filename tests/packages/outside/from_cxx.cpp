// SPDX-License-Identifier: Apache-2.0
#include <iostream>
#include <magi/log.hpp>
#include <magi/mask_builders.hpp>
#include <magi/runtime.hpp>
#include <memory>
#include <vector>

int main() {
  magi::set_log_sink({}, magi::LogLevel::Error);  // silence, where this program prints
  const std::vector<std::int32_t> documents{0, 700, 1500, 4096};
  const auto mask = magi::mask_from_cu_seqlens(documents, documents, {.is_causal = true});
  const auto plan = std::make_shared<const magi::Plan>(magi::make_plan(
      mask, {.num_ranks = 2, .num_heads_q = 1, .num_heads_kv = 1, .element_bytes = 4}));
  magi::run_ranks(2, [&](magi::Communicator& ranks) {
    const std::int64_t rows = plan->placement_q.rows_of(ranks.rank());
    magi::HostTensor<float> q({rows, 1, 128}), k({rows, 1, 128}), v({rows, 1, 128}),
        out({rows, 1, 128}), lse({rows, 1});
    magi::DistributedAttention(plan, ranks)
        .forward({.q = q, .k = k, .v = v}, {.out = out, .lse = lse});
    // The first row sees itself alone, with the score 0.
    if (ranks.rank() == 0) std::cout << "lse " << lse.elements()[0] << '\n';
  });
}
