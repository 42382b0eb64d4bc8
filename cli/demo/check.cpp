// SPDX-License-Identifier: Apache-2.0
#include "demo/check.hpp"

#include <algorithm>
#include <chrono>
#include <span>

#include "bounds/bounds.hpp"
#include "draw/numbers.hpp"
#include "reference/dense_attention.hpp"
#include "reference/error_rule.hpp"

namespace magi::cli {
namespace {

/// Work of the search for a mask's bound: some tenths of a second.
constexpr std::int64_t kBoundWork = std::int64_t{1} << 28;

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

struct DenseResults {
  reference::DenseOutput output;
  reference::DenseGradients gradients;
};

DenseResults dense_results(const reference::DenseInput& input, const Mask& mask,
                           const std::vector<double>& dout) {
  const reference::RowCounts counts = reference::counts_of(mask);
  DenseResults results{.output = reference::dense_forward(input, counts), .gradients = {}};
  results.gradients = reference::dense_backward(input, counts, results.output, dout, {});
  return results;
}

/// The decisions on float32 results by the rule of the tests.
class Judge {
 public:
  Judge(const Embedding& embedding, const Mask& mask, DType type)
      : type_(type),
        input_(dense_input(embedding, mask.rows_q)),
        dout_(to_doubles(embedding.dout)) {
    truth = dense_results(input_, mask, dout_);
    if (type == DType::Float32) return;
    reference::DenseInput rounded = input_;
    rounded.rounding = reference::rounding_of(type);
    plain = dense_results(rounded, mask, dout_);
  }

  void judge(const char* name, const TensorView& got, const std::vector<double>& wanted,
             const std::vector<double>& rounded, double noise = 0.0) {
    const std::vector<double> values = to_doubles(got);
    reference::Decision decision = type_ == DType::Float32
                                       ? reference::judge_exact(values, wanted, type_)
                                       : reference::judge_rounded(values, wanted, rounded, type_);
    decision.allowed += noise;
    add(name, decision);
  }
  void judge_lse(const TensorView& got) {
    const std::vector<double> values = to_doubles(got);
    add("lse", type_ == DType::Float32 ? reference::judge_exact(values, truth.output.lse, type_)
                                       : reference::judge_approximate(values, truth.output.lse));
  }
  /// The tolerance of a gradient that sums over `factors`.
  double noise(const std::vector<double>& factors) const {
    return type_ == DType::Float32 ? 0.0 : reference::cancelled_noise(input_, dout_, factors);
  }
  const reference::DenseInput& input() const { return input_; }

  DenseResults truth, plain;
  std::vector<TensorCheck> checks;

 private:
  void add(const char* name, const reference::Decision& decision) {
    checks.push_back({.name = name,
                      .error = decision.error,
                      .allowed = decision.allowed,
                      .holds = decision.holds()});
  }

  DType type_;
  reference::DenseInput input_;
  std::vector<double> dout_;
};

std::vector<TensorCheck> check_tensors(const Scene& scene, const SceneResults& results,
                                       const Embedding& embedding, DType type) {
  Judge judge(embedding, scene.plan->mask, type);
  const auto& [output, gradients] = judge.truth;
  const auto& [plain_output, plain_gradients] = judge.plain;
  judge.judge("out", results.out, output.out, plain_output.out);
  judge.judge_lse(results.lse);
  judge.judge("dQ", results.dq, gradients.dq, plain_gradients.dq, judge.noise(judge.input().k));
  judge.judge("dK", results.dk, gradients.dk, plain_gradients.dk, judge.noise(judge.input().q));
  judge.judge("dV", results.dv, gradients.dv, plain_gradients.dv);
  return judge.checks;
}

constexpr std::int64_t kGradientBytes = sizeof(float);

/// Backward casts the keys again and returns float32 partial gradients of the same rows.
void check_bytes(const Plan& plan, const RankFigures* figures, SceneCheck& check) {
  const auto ranks = static_cast<std::size_t>(plan.config.num_ranks);
  for (std::size_t src = 0; src < ranks; ++src) {
    for (std::size_t dst = 0; dst < ranks; ++dst) {
      const std::int64_t cast = plan.report.pair_bytes[src * ranks + dst];
      const std::int64_t reduced =
          plan.report.pair_bytes[dst * ranks + src] / plan.config.element_bytes * kGradientBytes;
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

SceneCheck check_scene(const Scene& scene, const SceneResults& results, const Embedding& embedding,
                       DType type) {
  SceneCheck check;
  const auto start = std::chrono::steady_clock::now();
  check.tensors = check_tensors(scene, results, embedding, type);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  check.reference_seconds = elapsed.count();
  check_bytes(*scene.plan, results.figures, check);
  check.bound_bytes = find_bounds(*scene.plan, {.work = kBoundWork}).bytes;
  for (std::int32_t rank = 0; rank < scene.plan->config.num_ranks; ++rank) {
    check.forward_seconds = std::max(check.forward_seconds, results.figures[rank].forward_seconds);
    check.backward_seconds =
        std::max(check.backward_seconds, results.figures[rank].backward_seconds);
  }
  return check;
}

}  // namespace magi::cli
