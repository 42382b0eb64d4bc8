// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "magi/mask.hpp"
#include "magi/tensor.hpp"

namespace magi {

/// Layout of attention-sink logits: each adds exp(sink) to a row's denominator and nothing to its
/// output.
enum class SinkLayout : std::int32_t {
  SinkHead = 0,     ///< "sh": [num_sinks, heads_q], shared by all rows
  RowSinkHead = 1,  ///< "ssh": [rows_q, num_sinks, heads_q]
};

inline constexpr std::int32_t kMaxSinks = 8;

/// The options that all attention calls of a layer share. num_sinks is 1..kMaxSinks where a sink is
/// given; sink logits are float32 (float64 in float64 runs). One of +inf (or more than the type's
/// range over log2(e)) takes all weight of its rows: out is 0, lse +inf, and all gradients through
/// them are 0, that of the sink too.
struct AttentionParams {
  /// 0: 1 / sqrt(head_dim_qk). On GPUs 1e-30 to 1e30; on CPUs such magnitudes, for float64 any
  /// finite number.
  double softmax_scale = 0.0;
  /// c > 0: s = c * tanh(scale * q.k / c); 0: off; likewise. scale / c: on GPUs 1e-36 to 1e36, on
  /// CPUs 1e-30 to 1e30.
  double softcap = 0.0;
  SinkLayout sink_layout = SinkLayout::SinkHead;
  friend bool operator==(const AttentionParams&, const AttentionParams&) = default;
};

/// Attention over slices in the row coordinates of q and k. heads_q is a multiple of heads_kv;
/// query head h reads kv head h / (heads_q / heads_kv). Rows without keys give out 0 and lse -inf
/// (the sink's lse with one).
struct ForwardArgs {
  TensorView q;  ///< [rows_q, heads_q, dim_qk]
  TensorView k;  ///< [rows_k, heads_kv, dim_qk]
  TensorView v;  ///< [rows_k, heads_kv, dim_v]
  std::span<const BandSlice> slices;
  TensorView sink = {};        ///< empty: none. Applied once, by the call that is given it
  TensorView out;              ///< [rows_q, heads_q, dim_v], input type or float32 (float64)
  TensorView lse;              ///< [rows_q, heads_q], float32 (float64)
  TensorView max_logits = {};  ///< empty, or [heads_q] float32 (float64): max over visible pairs of
                               ///< softmax_scale * q.k before softcap; -inf where none
  bool is_merging = false;     ///< out (float32 / float64), lse and max_logits hold an earlier
                               ///< result over other keys to merge into
  AttentionParams params = {};
};

/// Gradients of the same call. Written, or added to when `is_accumulating` (then dq, dk, dv, dsink
/// are float32 / float64).
struct BackwardArgs {
  TensorView q, k, v;
  std::span<const BandSlice> slices;
  TensorView out;        ///< final out, of all keys and the sink
  TensorView lse;        ///< final lse
  TensorView dout;       ///< like out
  TensorView dlse = {};  ///< empty, or like lse: gradient through lse
  TensorView sink = {};  ///< empty where dsink is not wanted
  TensorView dq, dk, dv;
  TensorView dsink = {};  ///< like sink
  bool is_accumulating = false;
  bool is_writing_keys = false;  ///< dk and dv are written even where `is_accumulating`
  AttentionParams params = {};
};

/// The CPU backend: blocked online softmax, OpenMP, AVX2 chosen at run time. float32, float64,
/// bfloat16, float16 inputs (16-bit ones compute in float32). What a row does not see does not
/// touch its results, NaN included. Throws InvalidArgument naming the tensor.
void attention_forward_cpu(const ForwardArgs& args);
void attention_backward_cpu(const BackwardArgs& args);

}  // namespace magi
