// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/forward/reference.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/half.hpp"
#include "support/gpu/random_tensors.hpp"

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
        q_(values_of(*problem.q)),
        k_(values_of(*problem.k)),
        v_(values_of(*problem.v)),
        dim_qk_(problem.q->dim()),
        dim_v_(problem.v->dim()),
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
    const auto dim = static_cast<std::size_t>(dim_v_);
    result.lse[index] = weigh(row, keys, scores, false, result.out.data() + index * dim);
    weigh(row, keys, plain_scores, true, result.plain_out.data() + index * dim);
    return max_logit;
  }

 private:
  /// Elements of a row of K or V that a query head sees.
  const double* row_of(const std::vector<double>& values, std::int64_t key, std::int64_t head,
                       std::int64_t dim) const {
    return values.data() + (key * (heads_ / group_) + head / group_) * dim;
  }

  /// Eight partial sums, so that the processor can overlap them.
  static double dot(const double* a, const double* b, std::int64_t dim) {
    double sum[8] = {};
    for (std::int64_t d = 0; d < dim; d += 8) {
      for (std::int64_t lane = 0; lane < 8; ++lane) sum[lane] += a[d + lane] * b[d + lane];
    }
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
  }

  double collect(Row row, std::vector<std::int64_t>& keys, std::vector<double>& scores) const {
    double max_logit = -kInfinity;
    const double* q = q_.data() + (row.token * heads_ + row.head) * dim_qk_;
    for (const BandSlice& slice : problem_.slices) {
      const Range visible = visible_keys(slice, static_cast<std::int32_t>(row.token));
      for (std::int64_t key = visible.begin; key < visible.end; ++key) {
        const double score = scale_ * dot(q, row_of(k_, key, row.head, dim_qk_), dim_qk_);
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
    std::fill(out, out + dim_v_, 0.0);
    if (all.empty()) return -kInfinity;
    const double top = *std::max_element(all.begin(), all.end());
    double sum = 0.0;
    for (const double score : all) sum += std::exp(score - top);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const double share = std::exp(scores[i] - top) / sum;
      const double weight = is_rounding ? rounded(share, type_) : share;
      const double* v = row_of(v_, keys[i], row.head, dim_v_);
      for (std::int64_t d = 0; d < dim_v_; ++d) out[d] += weight * v[d];
    }
    if (is_rounding) {
      for (std::int64_t d = 0; d < dim_v_; ++d) out[d] = rounded(out[d], type_);
    }
    return top + std::log(sum);
  }

  const HostProblem& problem_;
  DType type_;
  std::vector<double> q_, k_, v_;
  std::int64_t dim_qk_;
  std::int64_t dim_v_;
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
  // Small problems come many at a time.
  constexpr std::int64_t kManyPairs = 1 << 24;
#pragma omp parallel for schedule(dynamic, 16) if (rows * heads * problem.k->rows() > kManyPairs)
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
