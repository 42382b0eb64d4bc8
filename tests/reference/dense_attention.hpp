// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "magi/attention.hpp"

// Attention the naive way: for every query row all scores, softmax, weighted sum, in double and in
// plain loops. Memory is that of the arrays plus a few rows per thread.
namespace magi::reference {

/// Writes how often row i of the queries sees every key: counts has rows_k entries.
using RowCounts = std::function<void(std::int32_t i, std::span<std::int32_t> counts)>;

/// Counts straight from the definition of a band slice; `mask` must outlive the result.
RowCounts counts_of(const Mask& mask);
/// Counts from a row-major [rows_q, rows_k] matrix that must outlive the result.
RowCounts counts_of(std::span<const std::uint16_t> matrix, std::int32_t rows_k);

/// What is rounded on the way: nothing, or what a plain 16-bit computation rounds (inputs, softmax
/// weights, gradients of scores, results), with sums still in double.
enum class Rounding : std::int32_t { None, BFloat16, Float16 };

/// All arrays are row-major.
struct DenseInput {
  std::int32_t rows_q = 0;
  std::int32_t rows_k = 0;
  std::int32_t heads_q = 1;
  std::int32_t heads_kv = 1;
  std::int32_t dim_qk = 1;
  std::int32_t dim_v = 1;
  std::vector<double> q;     ///< [rows_q, heads_q, dim_qk]
  std::vector<double> k;     ///< [rows_k, heads_kv, dim_qk]
  std::vector<double> v;     ///< [rows_k, heads_kv, dim_v]
  std::vector<double> sink;  ///< empty, [num_sinks, heads_q] or [rows_q, num_sinks, heads_q]
  std::int32_t num_sinks = 0;
  AttentionParams params;
  Rounding rounding = Rounding::None;
  bool is_rounding_scores = false;  ///< rounds the scores too, as a product that stores them does
};

struct DenseOutput {
  std::vector<double> out;         ///< [rows_q, heads_q, dim_v]
  std::vector<double> lse;         ///< [rows_q, heads_q]
  std::vector<double> max_logits;  ///< [heads_q]
};

struct DenseGradients {
  std::vector<double> dq;
  std::vector<double> dk;
  std::vector<double> dv;
  std::vector<double> dsink;  ///< like sink
};

DenseOutput dense_forward(const DenseInput& input, const RowCounts& counts);

/// Gradients for dout [rows_q, heads_q, dim_v] and dlse (empty, or [rows_q, heads_q]); `output` is
/// that of dense_forward.
DenseGradients dense_backward(const DenseInput& input, const RowCounts& counts,
                              const DenseOutput& output, const std::vector<double>& dout,
                              const std::vector<double>& dlse);

/// The nearest value of a 16-bit type (of double: the value itself).
double rounded(double value, Rounding rounding);

/// How a computation in `type` rounds: wider types than 16 bits do not.
Rounding rounding_of(DType type);

}  // namespace magi::reference
