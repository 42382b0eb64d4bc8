// SPDX-License-Identifier: Apache-2.0
#include "reference/dense_attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/half.hpp"

namespace magi::reference {
namespace {

using Vector = std::vector<double>;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::size_t at(std::int64_t row, std::int64_t heads, std::int64_t head, std::int64_t dim) {
  return static_cast<std::size_t>((row * heads + head) * dim);
}

/// Four partial sums, so that the processor can overlap them.
double dot(const double* a, const double* b, std::int32_t dim) {
  double sum[4] = {};
  std::int32_t d = 0;
  for (; d + 4 <= dim; d += 4) {
    for (int lane = 0; lane < 4; ++lane) sum[lane] += a[d + lane] * b[d + lane];
  }
  for (; d < dim; ++d) sum[0] += a[d] * b[d];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

void add_scaled(double factor, const double* from, std::int32_t dim, double* to) {
  for (std::int32_t d = 0; d < dim; ++d) to[d] += factor * from[d];
}

Vector rounded(Vector values, Rounding rounding) {
  for (double& value : values) value = reference::rounded(value, rounding);
  return values;
}

double scale_of(const DenseInput& in) {
  return in.params.softmax_scale != 0 ? in.params.softmax_scale : 1 / std::sqrt(in.dim_qk);
}

double sink_of(const DenseInput& in, std::int32_t i, std::int32_t s, std::int32_t head) {
  const bool is_per_row = in.params.sink_layout == SinkLayout::RowSinkHead;
  return in.sink[at(is_per_row ? i * in.num_sinks + s : s, in.heads_q, head, 1)];
}

/// The inputs as the computation sees them.
DenseInput rounded_input(const DenseInput& input) {
  DenseInput in = input;
  in.q = rounded(std::move(in.q), in.rounding);
  in.k = rounded(std::move(in.k), in.rounding);
  in.v = rounded(std::move(in.v), in.rounding);
  return in;
}

/// One query row of one head: its scores and what came before the softcap.
struct Row {
  std::vector<std::int32_t> counts;
  std::vector<std::int32_t> seen;  ///< keys with a count above 0
  Vector logits;                   ///< softmax_scale * q.k
  Vector scores;                   ///< after the softcap
};

void count_row(const DenseInput& in, const RowCounts& counts, std::int32_t i, Row& row) {
  row.counts.assign(static_cast<std::size_t>(in.rows_k), 0);
  counts(i, row.counts);
  row.seen.clear();
  for (std::int32_t j = 0; j < in.rows_k; ++j) {
    if (row.counts[static_cast<std::size_t>(j)] > 0) row.seen.push_back(j);
  }
  row.logits.resize(row.counts.size());
  row.scores.resize(row.counts.size());
}

void score_row(const DenseInput& in, std::int32_t i, std::int32_t head, Row& row) {
  const std::int32_t kv = head / (in.heads_q / in.heads_kv);
  const double* q = in.q.data() + at(i, in.heads_q, head, in.dim_qk);
  const double cap = in.params.softcap;
  for (const std::int32_t j : row.seen) {
    const double* k = in.k.data() + at(j, in.heads_kv, kv, in.dim_qk);
    const double logit = scale_of(in) * dot(q, k, in.dim_qk);
    row.logits[static_cast<std::size_t>(j)] = logit;
    const double score = cap > 0 ? cap * std::tanh(logit / cap) : logit;
    row.scores[static_cast<std::size_t>(j)] =
        in.is_rounding_scores ? reference::rounded(score, in.rounding) : score;
  }
}

void forward_row(const DenseInput& in, std::int32_t i, std::int32_t head, Row& row,
                 DenseOutput& output) {
  score_row(in, i, head, row);
  double top = -kInfinity;
  for (const std::int32_t j : row.seen)
    top = std::max(top, row.scores[static_cast<std::size_t>(j)]);
  for (std::int32_t s = 0; s < in.num_sinks; ++s) top = std::max(top, sink_of(in, i, s, head));
  double sum = 0;
  for (const std::int32_t j : row.seen) {
    const auto key = static_cast<std::size_t>(j);
    sum += row.counts[key] * std::exp(row.scores[key] - top);
  }
  for (std::int32_t s = 0; s < in.num_sinks; ++s) sum += std::exp(sink_of(in, i, s, head) - top);
  const std::size_t place = at(i, in.heads_q, head, 1);
  output.lse[place] = std::isinf(top) ? -kInfinity : top + std::log(sum);
  double* out = output.out.data() + at(i, in.heads_q, head, in.dim_v);
  const std::int32_t kv = head / (in.heads_q / in.heads_kv);
  for (const std::int32_t j : row.seen) {
    const auto key = static_cast<std::size_t>(j);
    const double weight = std::exp(row.scores[key] - output.lse[place]);
    add_scaled(row.counts[key] * reference::rounded(weight, in.rounding),
               in.v.data() + at(j, in.heads_kv, kv, in.dim_v), in.dim_v, out);
  }
}

/// What the rows of the gradients need besides the input.
struct Upstream {
  const DenseOutput& output;
  const Vector& dout;
  const Vector& dlse;
};

void backward_row(const DenseInput& in, const Upstream& up, std::int32_t i, std::int32_t head,
                  Row& row, DenseGradients& grads) {
  score_row(in, i, head, row);
  const std::int32_t kv = head / (in.heads_q / in.heads_kv);
  const std::size_t place = at(i, in.heads_q, head, 1);
  const double* q = in.q.data() + at(i, in.heads_q, head, in.dim_qk);
  const double* dout = up.dout.data() + at(i, in.heads_q, head, in.dim_v);
  const double* out = up.output.out.data() + at(i, in.heads_q, head, in.dim_v);
  const double lse = up.output.lse[place];
  const double dlse = up.dlse.empty() ? 0 : up.dlse[place];
  const double delta = dot(dout, out, in.dim_v);
  for (const std::int32_t j : row.seen) {
    const auto key = static_cast<std::size_t>(j);
    const double* k = in.k.data() + at(j, in.heads_kv, kv, in.dim_qk);
    const double* v = in.v.data() + at(j, in.heads_kv, kv, in.dim_v);
    const double weight = std::exp(row.scores[key] - lse);
    // d out / d score is p (v - out) and d lse / d score is p.
    double dscore = weight * (dot(dout, v, in.dim_v) - delta + dlse);
    if (in.params.softcap > 0) {
      const double bounded = row.scores[key] / in.params.softcap;
      dscore *= 1 - bounded * bounded;
    }
    const double step = row.counts[key] * scale_of(in) * reference::rounded(dscore, in.rounding);
    add_scaled(step, k, in.dim_qk, grads.dq.data() + at(i, in.heads_q, head, in.dim_qk));
    add_scaled(step, q, in.dim_qk, grads.dk.data() + at(j, in.heads_kv, kv, in.dim_qk));
    add_scaled(row.counts[key] * reference::rounded(weight, in.rounding), dout, in.dim_v,
               grads.dv.data() + at(j, in.heads_kv, kv, in.dim_v));
  }
  const bool is_per_row = in.params.sink_layout == SinkLayout::RowSinkHead;
  for (std::int32_t s = 0; s < in.num_sinks && lse > -kInfinity; ++s) {
    const double weight = std::exp(sink_of(in, i, s, head) - lse);
    grads.dsink[at(is_per_row ? i * in.num_sinks + s : s, in.heads_q, head, 1)] +=
        weight * (dlse - delta);
  }
}

/// Below this a team of threads costs more than it saves.
bool is_worth_threads(const DenseInput& in) {
#if defined(__SANITIZE_THREAD__)
  // ThreadSanitizer cannot see into OpenMP's runtime.
  return false;
#else
  const double products = static_cast<double>(in.rows_q) * in.rows_k * in.heads_q * in.dim_qk;
  return products > 1e7;
#endif
}

}  // namespace

RowCounts counts_of(const Mask& mask) {
  return [&mask](std::int32_t i, std::span<std::int32_t> counts) {
    for (const BandSlice& slice : mask.slices) {
      if (i < slice.q0 || i >= slice.q1) continue;
      for (std::int32_t j = slice.k0; j < slice.k1; ++j) {
        if (slice.d_min <= j - i && j - i <= slice.d_max) ++counts[static_cast<std::size_t>(j)];
      }
    }
  };
}

RowCounts counts_of(std::span<const std::uint16_t> matrix, std::int32_t rows_k) {
  return [matrix, rows_k](std::int32_t i, std::span<std::int32_t> counts) {
    const std::uint16_t* row = matrix.data() + std::int64_t{i} * rows_k;
    std::copy(row, row + rows_k, counts.begin());
  };
}

double rounded(double value, Rounding rounding) {
  switch (rounding) {
    case Rounding::None:
      return value;
    case Rounding::BFloat16:
      return bfloat16_to_float(float_to_bfloat16(static_cast<float>(value)));
    case Rounding::Float16:
      return float16_to_float(float_to_float16(static_cast<float>(value)));
  }
  return value;
}

Rounding rounding_of(DType type) {
  if (type == DType::BFloat16) return Rounding::BFloat16;
  return type == DType::Float16 ? Rounding::Float16 : Rounding::None;
}

DenseOutput dense_forward(const DenseInput& input, const RowCounts& counts) {
  const DenseInput in = rounded_input(input);
  DenseOutput output;
  output.out.assign(at(in.rows_q, in.heads_q, 0, in.dim_v), 0.0);
  output.lse.assign(at(in.rows_q, in.heads_q, 0, 1), -kInfinity);
  output.max_logits.assign(static_cast<std::size_t>(in.heads_q), -kInfinity);
#pragma omp parallel if (is_worth_threads(in))
  {
    Row row;
    Vector top(output.max_logits.size(), -kInfinity);
#pragma omp for schedule(dynamic, 16)
    for (std::int32_t i = 0; i < in.rows_q; ++i) {
      count_row(in, counts, i, row);
      for (std::int32_t head = 0; head < in.heads_q; ++head) {
        forward_row(in, i, head, row, output);
        double& best = top[static_cast<std::size_t>(head)];
        for (const std::int32_t j : row.seen) {
          best = std::max(best, row.logits[static_cast<std::size_t>(j)]);
        }
      }
    }
#pragma omp critical
    for (std::size_t head = 0; head < top.size(); ++head) {
      output.max_logits[head] = std::max(output.max_logits[head], top[head]);
    }
  }
  output.out = rounded(std::move(output.out), in.rounding);
  return output;
}

DenseGradients dense_backward(const DenseInput& input, const RowCounts& counts,
                              const DenseOutput& output, const std::vector<double>& dout,
                              const std::vector<double>& dlse) {
  const DenseInput in = rounded_input(input);
  const Vector dout_seen = rounded(dout, in.rounding);
  const Upstream up{output, dout_seen, dlse};
  DenseGradients grads;
  grads.dq.assign(in.q.size(), 0.0);
  grads.dk.assign(in.k.size(), 0.0);
  grads.dv.assign(in.v.size(), 0.0);
  grads.dsink.assign(in.sink.size(), 0.0);
  const std::int32_t group = in.heads_q / in.heads_kv;
  // A kv head's gradients are summed by one thread, row after row.
#pragma omp parallel for schedule(dynamic) if (is_worth_threads(in))
  for (std::int32_t kv = 0; kv < in.heads_kv; ++kv) {
    Row row;
    for (std::int32_t i = 0; i < in.rows_q; ++i) {
      count_row(in, counts, i, row);
      for (std::int32_t head = kv * group; head < (kv + 1) * group; ++head) {
        backward_row(in, up, i, head, row, grads);
      }
    }
  }
  grads.dq = rounded(std::move(grads.dq), in.rounding);
  grads.dk = rounded(std::move(grads.dk), in.rounding);
  grads.dv = rounded(std::move(grads.dv), in.rounding);
  return grads;
}

}  // namespace magi::reference
