// SPDX-License-Identifier: Apache-2.0
#include "demo/check.hpp"

#include <algorithm>
#include <chrono>
#include <span>

#include "draw/numbers.hpp"
#include "reference/dense_attention.hpp"
#include "reference/error_rule.hpp"

namespace magi::cli {
namespace {

std::vector<double> to_doubles(const TensorView& tensor) {
  const auto* data = static_cast<const float*>(tensor.data);
  return {data, data + tensor.num_elements()};
}

reference::DenseInput dense_input(const Embedding& embedding, std::int32_t rows) {
  return {.rows_q = rows,
          .rows_k = rows,
          .heads_q = kDemoHeadsQ,
          .heads_kv = kDemoHeadsKv,
          .dim_qk = kDemoHeadDim,
          .dim_v = kDemoHeadDim,
          .q = to_doubles(embedding.q),
          .k = to_doubles(embedding.k),
          .v = to_doubles(embedding.v)};
}

std::vector<TensorCheck> check_tensors(const Scene& scene, const SceneResults& results,
                                       const Embedding& embedding) {
  const Mask& mask = scene.plan->mask;
  const reference::DenseInput input = dense_input(embedding, mask.rows_q);
  const reference::RowCounts counts = reference::counts_of(mask);
  const reference::DenseOutput output = reference::dense_forward(input, counts);
  const reference::DenseGradients gradients =
      reference::dense_backward(input, counts, output, to_doubles(embedding.dout), {});
  std::vector<TensorCheck> checks;
  const auto judge = [&](const char* name, const TensorView& got,
                         const std::vector<double>& truth) {
    const reference::Verdict verdict =
        reference::judge_exact(to_doubles(got), truth, DType::Float32);
    checks.push_back({.name = name,
                      .error = verdict.error,
                      .allowed = verdict.allowed,
                      .holds = verdict.holds()});
  };
  judge("out", results.out, output.out);
  judge("lse", results.lse, output.lse);
  judge("dQ", results.dq, gradients.dq);
  judge("dK", results.dk, gradients.dk);
  judge("dV", results.dv, gradients.dv);
  return checks;
}

/// Backward casts the keys again and returns float32 partial gradients of the same rows.
void check_bytes(const Plan& plan, const RankFigures* figures, SceneCheck& check) {
  const auto ranks = static_cast<std::size_t>(plan.config.num_ranks);
  for (std::size_t src = 0; src < ranks; ++src) {
    for (std::size_t dst = 0; dst < ranks; ++dst) {
      const std::int64_t cast = plan.report.pair_bytes[src * ranks + dst];
      const std::int64_t reduced = plan.report.pair_bytes[dst * ranks + src];
      const std::int64_t forward = figures[src].forward_bytes[dst];
      const std::int64_t backward = figures[src].backward_bytes[dst];
      check.forward_bytes += forward;
      check.backward_bytes += backward;
      if (!check.byte_fault.empty() || (forward == cast && backward == cast + reduced)) continue;
      check.byte_fault = "rank " + std::to_string(src) + " sent rank " + std::to_string(dst) + " " +
                         draw::grouped(forward) + " bytes forward and " + draw::grouped(backward) +
                         " backward; planned: " + draw::grouped(cast) + " and " +
                         draw::grouped(cast + reduced);
    }
  }
}

}  // namespace

bool SceneCheck::holds() const {
  return byte_fault.empty() && std::all_of(tensors.begin(), tensors.end(),
                                           [](const TensorCheck& tensor) { return tensor.holds; });
}

SceneCheck check_scene(const Scene& scene, const SceneResults& results,
                       const Embedding& embedding) {
  SceneCheck check;
  const auto start = std::chrono::steady_clock::now();
  check.tensors = check_tensors(scene, results, embedding);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  check.reference_seconds = elapsed.count();
  check_bytes(*scene.plan, results.figures, check);
  for (std::int32_t rank = 0; rank < scene.plan->config.num_ranks; ++rank) {
    check.forward_seconds = std::max(check.forward_seconds, results.figures[rank].forward_seconds);
    check.backward_seconds =
        std::max(check.backward_seconds, results.figures[rank].backward_seconds);
  }
  return check;
}

}  // namespace magi::cli
