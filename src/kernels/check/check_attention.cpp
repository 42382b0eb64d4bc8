// SPDX-License-Identifier: Apache-2.0
#include "kernels/check/check_attention.hpp"

#include <array>
#include <string>
#include <utility>

#include "base/check.hpp"
#include "kernels/check/check_tensor.hpp"

namespace magi {
namespace {

/// The sizes of a call and the tensors' device.
struct Call {
  const AttentionLimits& limits;
  std::int64_t rows_q, rows_k, heads_q, heads_kv, dim_qk, dim_v;
  DType type, sums;
  std::int32_t device;

  std::array<std::int64_t, 3> like_out() const { return {rows_q, heads_q, dim_v}; }
};

void check_rows(const char* name, std::int64_t rows) {
  if (rows < 0 || rows > kMaxRows) throw invalid(name, rows, "0 to " + std::to_string(kMaxRows));
}

/// Each kv head serves as many query heads.
void check_heads(std::int64_t heads_q, std::int64_t heads_kv) {
  if (heads_kv < 1) throw invalid("heads_kv", heads_kv, "1 or more");
  if (heads_q >= 1 && heads_q % heads_kv == 0) return;
  throw invalid("heads_q", heads_q, "multiples of heads_kv, " + std::to_string(heads_kv));
}

/// q, k and v give the sizes by which all other tensors are measured.
Call check_inputs(const AttentionLimits& limits, const TensorView& q, const TensorView& k,
                  const TensorView& v, std::int32_t device) {
  check_type(limits, "q.dtype", q.dtype);
  for (const auto& [name, tensor] : {std::pair{"q", &q}, {"k", &k}, {"v", &v}}) {
    check_rank(name, *tensor, 3);
    check_dtype(name, *tensor, std::array{q.dtype});
  }
  check_rows("q.shape[0]", q.shape[0]);
  check_rows("k.shape[0]", k.shape[0]);
  check_head_dim(limits.dim_qk, "q.shape[2]", q.shape[2]);
  check_head_dim(limits.dim_v, "v.shape[2]", v.shape[2]);
  check_shape("k", k, std::array{k.shape[0], k.shape[1], q.shape[2]});
  check_shape("v", v, std::array{k.shape[0], k.shape[1], v.shape[2]});
  check_heads(q.shape[1], k.shape[1]);
  return {.limits = limits,
          .rows_q = q.shape[0],
          .rows_k = k.shape[0],
          .heads_q = q.shape[1],
          .heads_kv = k.shape[1],
          .dim_qk = q.shape[2],
          .dim_v = v.shape[2],
          .type = q.dtype,
          .sums = accumulator_type(q.dtype),
          .device = device};
}

/// A tensor [rows, heads, dim] of one of two types that may be equal.
void check_rows_of(const Call& call, const char* name, const TensorView& tensor,
                   const std::array<std::int64_t, 3>& shape, std::array<DType, 2> types) {
  check_tensor(tensor, {name, {shape[0], shape[1], shape[2]}, {types[0], types[1]}}, call.device);
  check_layout(call.limits, name, tensor);
}

/// Data, layout and device of the inputs, whose shapes are known to fit.
void check_input_data(const Call& call, const TensorView& q, const TensorView& k,
                      const TensorView& v) {
  const std::array types{call.type, call.type};
  check_rows_of(call, "q", q, {call.rows_q, call.heads_q, call.dim_qk}, types);
  check_rows_of(call, "k", k, {call.rows_k, call.heads_kv, call.dim_qk}, types);
  check_rows_of(call, "v", v, {call.rows_k, call.heads_kv, call.dim_v}, types);
}

/// A result that is written has the type of q or that of sums; one that is added to, that of sums.
std::array<DType, 2> result_types(const Call& call, bool is_updated) {
  return {is_updated ? call.sums : call.type, call.sums};
}

/// out and dout, as a backward reads them.
std::array<DType, 2> given_types(const Call& call) {
  return {call.type, call.limits.has_float_outputs ? call.sums : call.type};
}

void check_like_lse(const Call& call, const char* name, const TensorView& tensor) {
  check_tensor(tensor, {name, {call.rows_q, call.heads_q}, {call.sums}, false}, call.device);
}

void check_sink(const Call& call, const char* name, const TensorView& sink, SinkLayout layout) {
  if (layout != SinkLayout::SinkHead && layout != SinkLayout::RowSinkHead) {
    throw invalid("sink_layout", static_cast<std::int32_t>(layout), "0 (sh) or 1 (ssh)");
  }
  const bool is_per_row = layout == SinkLayout::RowSinkHead;
  const std::int32_t rank = is_per_row ? 3 : 2;
  const std::string prefix = name;
  if (sink.rank != rank) {
    throw invalid(prefix + ".rank", sink.rank,
                  is_per_row ? "3, [rows_q, sinks, heads_q]" : "2, [sinks, heads_q]");
  }
  const auto axis = static_cast<std::size_t>(rank - 2);
  const std::int64_t count = sink.shape[axis];
  if (count < 1 || count > kMaxSinks) {
    throw invalid(prefix + ".shape[" + std::to_string(axis) + "]", count,
                  "1 to " + std::to_string(kMaxSinks) + " sinks");
  }
  const bool is_dense = !call.limits.has_spread_sinks;
  if (is_per_row) {
    return check_tensor(sink, {name, {call.rows_q, count, call.heads_q}, {call.sums}, is_dense},
                        call.device);
  }
  check_tensor(sink, {name, {count, call.heads_q}, {call.sums}, is_dense}, call.device);
}

void check_sink_gradient(const Call& call, const BackwardArgs& args) {
  if (args.sink.empty() && !args.dsink.empty())
    throw invalid("dsink", "given", "none without sink");
  if (args.sink.empty()) return;
  if (args.dsink.empty()) throw invalid("dsink", "missing", "the gradient of sink");
  const SinkLayout layout = args.params.sink_layout;
  check_sink(call, "sink", args.sink, layout);
  check_sink(call, "dsink", args.dsink, layout);
  check_shape("dsink", args.dsink,
              std::span(args.sink.shape).first(static_cast<std::size_t>(args.sink.rank)));
}

}  // namespace

void check_problem(const AttentionLimits& limits, const ForwardArgs& args) {
  check_inputs(limits, args.q, args.k, args.v, args.q.device);
}

void check_problem(const AttentionLimits& limits, const BackwardArgs& args) {
  const Call call = check_inputs(limits, args.q, args.k, args.v, args.q.device);
  check_shape("dout", args.dout, call.like_out());
  check_dtype("dout", args.dout, given_types(call));
}

void check_attention(const AttentionLimits& limits, const ForwardArgs& args, std::int32_t device) {
  const Call call = check_inputs(limits, args.q, args.k, args.v, device);
  check_input_data(call, args.q, args.k, args.v);
  check_rows_of(call, "out", args.out, call.like_out(), result_types(call, args.is_merging));
  check_like_lse(call, "lse", args.lse);
  if (!args.max_logits.empty()) {
    check_tensor(args.max_logits,
                 {"max_logits", {call.heads_q}, {call.sums}, !limits.has_spread_sinks}, device);
  }
  if (!args.sink.empty()) check_sink(call, "sink", args.sink, args.params.sink_layout);
  check_options(limits, args.params, call.sums,
                {.has_sink = !args.sink.empty(), .has_max_logits = !args.max_logits.empty()});
}

void check_attention(const AttentionLimits& limits, const BackwardArgs& args, std::int32_t device) {
  const Call call = check_inputs(limits, args.q, args.k, args.v, device);
  check_input_data(call, args.q, args.k, args.v);
  check_rows_of(call, "out", args.out, call.like_out(), given_types(call));
  check_rows_of(call, "dout", args.dout, call.like_out(), given_types(call));
  check_like_lse(call, "lse", args.lse);
  if (!args.dlse.empty()) check_like_lse(call, "dlse", args.dlse);
  const std::array types = result_types(call, args.is_accumulating);
  check_rows_of(call, "dq", args.dq, {call.rows_q, call.heads_q, call.dim_qk}, types);
  check_rows_of(call, "dk", args.dk, {call.rows_k, call.heads_kv, call.dim_qk}, types);
  check_rows_of(call, "dv", args.dv, {call.rows_k, call.heads_kv, call.dim_v}, types);
  check_sink_gradient(call, args);
  check_options(limits, args.params, call.sums,
                {.has_sink = !args.sink.empty(), .has_dlse = !args.dlse.empty()});
}

void check_lists(const KeyLists& lists, const TensorView& q, const TensorView& k) {
  const TensorView& indices = lists.indices;
  check_rank("indices", indices, 3);
  check_tensor(indices,
               {"indices", {q.shape[0], k.shape[1], indices.shape[2]}, {DType::Int32}, false},
               q.device);
  if (lists.block_keys < 1 || lists.block_keys > kMaxRows) {
    throw invalid("block_keys", lists.block_keys, "1 to " + std::to_string(kMaxRows));
  }
  if (lists.report.empty()) return;
  check_tensor(lists.report, {"report", {2}, {DType::Int64}}, q.device);
}

}  // namespace magi
