// SPDX-License-Identifier: Apache-2.0
#include "gpu/reference.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/half.hpp"

namespace magi::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double rounded(double value, DType type) {
  const auto single = static_cast<float>(value);
  return static_cast<double>(type == DType::BFloat16 ? bfloat16_to_float(float_to_bfloat16(single))
                                                     : float16_to_float(float_to_float16(single)));
}

struct Row {
  std::int64_t token;
  std::int64_t head;
};

class Attender {
 public:
  explicit Attender(const HostProblem& problem)
      : problem_(problem),
        type_(problem.q->view().dtype),
        heads_(problem.q->heads()),
        group_(problem.q->heads() / problem.k->heads()),
        scale_(problem.params.softmax_scale > 0.0
                   ? problem.params.softmax_scale
                   : 1.0 / std::sqrt(static_cast<double>(problem.q->dim()))) {}

  /// Writes row (token, head) of the result; returns the row's largest logit.
  double attend(Row row, HostResult& result) const {
    std::vector<std::int64_t> keys;
    std::vector<double> scores;
    const double max_logit = collect(row, keys, scores);
    std::vector<double> plain_scores;
    for (const double score : scores) plain_scores.push_back(rounded(score, type_));
    const auto index = static_cast<std::size_t>(row.token * heads_ + row.head);
    const auto dim = static_cast<std::size_t>(problem_.v->dim());
    result.lse[index] = weigh(row, keys, scores, false, result.out.data() + index * dim);
    weigh(row, keys, plain_scores, true, result.plain_out.data() + index * dim);
    return max_logit;
  }

 private:
  double collect(Row row, std::vector<std::int64_t>& keys, std::vector<double>& scores) const {
    double max_logit = -kInfinity;
    for (const BandSlice& slice : problem_.slices) {
      const Range visible = visible_keys(slice, static_cast<std::int32_t>(row.token));
      for (std::int64_t key = visible.begin; key < visible.end; ++key) {
        double score = 0.0;
        for (std::int64_t d = 0; d < problem_.q->dim(); ++d) {
          score +=
              problem_.q->get(row.token, row.head, d) * problem_.k->get(key, row.head / group_, d);
        }
        score *= scale_;
        max_logit = std::max(max_logit, score);
        const double cap = problem_.params.softcap;
        keys.push_back(key);
        scores.push_back(cap > 0.0 ? cap * std::tanh(score / cap) : score);
      }
    }
    return max_logit;
  }

  /// Softmax of the scores and the sinks applied to V; returns lse.
  double weigh(Row row, const std::vector<std::int64_t>& keys, const std::vector<double>& scores,
               bool is_rounding, double* out) const {
    std::vector<double> all = scores;
    if (problem_.sink != nullptr) {
      const std::int64_t sink_row = problem_.sink->rows() == 1 ? 0 : row.token;
      for (std::int64_t i = 0; i < problem_.sink->heads(); ++i) {
        all.push_back(problem_.sink->get(sink_row, i, row.head));
      }
    }
    const auto dim = static_cast<std::size_t>(problem_.v->dim());
    std::fill(out, out + dim, 0.0);
    if (all.empty()) return -kInfinity;
    const double top = *std::max_element(all.begin(), all.end());
    double sum = 0.0;
    for (const double score : all) sum += std::exp(score - top);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const double share = std::exp(scores[i] - top) / sum;
      const double weight = is_rounding ? rounded(share, type_) : share;
      for (std::size_t d = 0; d < dim; ++d) {
        out[d] +=
            weight * problem_.v->get(keys[i], row.head / group_, static_cast<std::int64_t>(d));
      }
    }
    if (is_rounding) {
      for (std::size_t d = 0; d < dim; ++d) out[d] = rounded(out[d], type_);
    }
    return top + std::log(sum);
  }

  const HostProblem& problem_;
  DType type_;
  std::int64_t heads_;
  std::int64_t group_;
  double scale_;
};

}  // namespace

HostResult attend_on_host(const HostProblem& problem) {
  const std::int64_t rows = problem.q->rows();
  const std::int64_t heads = problem.q->heads();
  const auto count = static_cast<std::size_t>(rows * heads);
  HostResult result;
  result.out.resize(count * static_cast<std::size_t>(problem.v->dim()));
  result.plain_out.resize(result.out.size());
  result.lse.resize(count);
  std::vector<double> row_max(count);
  const Attender attender(problem);
#pragma omp parallel for schedule(dynamic, 16)
  for (std::int64_t i = 0; i < rows * heads; ++i) {
    row_max[static_cast<std::size_t>(i)] = attender.attend({i / heads, i % heads}, result);
  }
  result.max_logits.assign(static_cast<std::size_t>(heads), -kInfinity);
  for (std::size_t i = 0; i < count; ++i) {
    double& top = result.max_logits[i % static_cast<std::size_t>(heads)];
    top = std::max(top, row_max[i]);
  }
  return result;
}

}  // namespace magi::test
