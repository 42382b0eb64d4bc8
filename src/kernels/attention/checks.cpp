// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/checks.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.hpp"
#include "cuda/arena.hpp"
#include "kernels/attention/backend.hpp"

namespace magi {
namespace {

using Shape = AttentionProblem::Shape;

Shape shape_of(const TensorView& tensor) {
  return {tensor.shape[0], tensor.shape[1], tensor.shape[2]};
}

void check_rows(const char* name, std::int64_t rows) {
  if (rows < 0 || rows > kMaxRows) throw invalid(name, rows, "0 to 2^30 - 1");
}

void check_shape(const char* name, const TensorView& tensor, const Shape& shape) {
  const bool is_equal =
      tensor.rank == 3 && std::equal(shape.begin(), shape.end(), tensor.shape.begin());
  if (is_equal) return;
  const auto text = [](const auto& extents) {
    return "[" + std::to_string(extents[0]) + ", " + std::to_string(extents[1]) + ", " +
           std::to_string(extents[2]) + "]";
  };
  throw invalid(name, "of rank " + std::to_string(tensor.rank) + ", " + text(tensor.shape),
                text(shape));
}

void check_dtype(const std::string& name, const TensorView& tensor, DType allowed) {
  if (tensor.dtype == allowed) return;
  throw invalid(name + ".dtype", dtype_name(tensor.dtype), dtype_name(allowed));
}

/// An output or its gradient has the type of q or that of sums, and that of sums alone where it
/// `is_updated`.
void check_output_type(const char* name, const TensorView& tensor, DType type, bool is_updated,
                       const char* when) {
  const DType sums = accumulator_of(type);
  if (tensor.dtype == sums || (tensor.dtype == type && !is_updated)) return;
  throw invalid(std::string(name) + ".dtype", dtype_name(tensor.dtype),
                is_updated ? std::string(dtype_name(sums)) + " where " + when
                           : "that of q, " + std::string(dtype_name(sums)));
}

/// Each kv head serves as many query heads.
void check_heads(std::int64_t heads_q, std::int64_t heads_kv) {
  if (heads_kv < 1) throw invalid("heads_kv", heads_kv, "1 or more");
  if (heads_q >= 1 && heads_q % heads_kv == 0) return;
  throw invalid("heads_q", heads_q, "multiples of heads_kv, " + std::to_string(heads_kv));
}

void check_inputs(const AttentionLimits& limits, const TensorView& q, const TensorView& k,
                  const TensorView& v) {
  check_type(limits, "q.dtype", q.dtype);
  if (k.dtype != q.dtype) throw invalid("k.dtype", dtype_name(k.dtype), "that of q");
  if (v.dtype != q.dtype) throw invalid("v.dtype", dtype_name(v.dtype), "that of q");
  check_rows("q.shape[0]", q.shape[0]);
  check_rows("k.shape[0]", k.shape[0]);
  check_head_dim(limits.dim_qk, "q.shape[2]", q.shape[2]);
  check_head_dim(limits.dim_v, "v.shape[2]", v.shape[2]);
  check_shape("q", q, shape_of(q));
  check_shape("k", k, {k.shape[0], k.shape[1], q.shape[2]});
  check_shape("v", v, {k.shape[0], k.shape[1], v.shape[2]});
  check_heads(q.shape[1], k.shape[1]);
}

void check_device(const char* name, const TensorView& tensor, std::int32_t device) {
  if (tensor.device == device) return;
  throw invalid(std::string(name) + ".device", tensor.device,
                "that of q, " + std::to_string(device));
}

/// A tensor [rows, heads, dim] with data, if it has elements, on `device`, laid out as allowed.
void check_tensor(const AttentionLimits& limits, const char* name, const TensorView& tensor,
                  std::int32_t device) {
  check_device(name, tensor, device);
  if (tensor.empty() && tensor.num_elements() > 0) {
    throw invalid(std::string(name) + ".data", "null", "memory of the device");
  }
  check_layout(limits, name, tensor);
}

/// [rows of q, heads of q] with data, in the type of sums.
void check_like_lse(const char* name, const TensorView& tensor, const TensorView& q) {
  check_dtype(name, tensor, accumulator_of(q.dtype));
  if (tensor.empty() && tensor.num_elements() > 0) {
    throw invalid(std::string(name) + ".data", "null", "memory of the device");
  }
  if (tensor.rank != 2 || tensor.shape[0] != q.shape[0] || tensor.shape[1] != q.shape[1]) {
    throw invalid(std::string(name) + ".shape", tensor.shape[0], "[rows of q, heads of q]");
  }
}

void check_max_logits(const TensorView& logits, const TensorView& q) {
  check_dtype("max_logits", logits, accumulator_of(q.dtype));
  const std::int64_t heads = q.shape[1];
  if (logits.rank != 1 || logits.shape[0] != heads || (heads > 1 && logits.stride[0] != 1)) {
    throw invalid("max_logits.shape", logits.shape[0], "[heads of q], contiguous");
  }
}

/// Sink logits or their gradients for the rows and heads of `q`.
void check_sink(const std::string& name, const TensorView& sink, SinkLayout layout,
                const TensorView& q) {
  check_dtype(name, sink, accumulator_of(q.dtype));
  const bool is_per_row = layout == SinkLayout::RowSinkHead;
  const std::int32_t rank = is_per_row ? 3 : 2;
  if (sink.rank != rank) throw invalid(name + ".rank", sink.rank, is_per_row ? "3" : "2");
  const auto last = static_cast<std::size_t>(rank - 1);
  const std::int64_t count = sink.shape[last - 1];
  if (count < 1 || count > kMaxSinks) throw invalid("number of sinks", count, "1 to 8");
  if (sink.shape[last] != q.shape[1]) {
    throw invalid(name + "'s heads", sink.shape[last], "heads of q");
  }
  if (is_per_row && sink.shape[0] != q.shape[0]) {
    throw invalid(name + ".shape[0]", sink.shape[0], "rows of q");
  }
  if (sink.stride[last] != 1 && sink.shape[last] > 1) {
    throw invalid(name + "'s head stride", sink.stride[last], "1");
  }
}

void check_sink_gradient(const BackwardArgs& args, std::int32_t device) {
  if (args.sink.empty() != args.dsink.empty()) {
    throw invalid(args.sink.empty() ? "sink" : "dsink", "missing",
                  "both of sink and dsink or none");
  }
  if (args.sink.empty()) return;
  for (const auto& [name, tensor] : {std::pair{"sink", &args.sink}, {"dsink", &args.dsink}}) {
    check_sink(name, *tensor, args.params.sink_layout, args.q);
    check_device(name, *tensor, device);
  }
  const auto axis = static_cast<std::size_t>(args.sink.rank - 2);
  if (args.dsink.shape[axis] != args.sink.shape[axis]) {
    throw invalid("dsink's number of sinks", args.dsink.shape[axis], "that of sink");
  }
}

void check_dout(const BackwardArgs& args) {
  check_shape("dout", args.dout, {args.q.shape[0], args.q.shape[1], args.v.shape[2]});
  check_output_type("dout", args.dout, args.q.dtype, false, "");
}

/// Written, or added to where `is_added`.
void check_gradient(const char* name, const TensorView& gradient, const TensorView& of,
                    bool is_added) {
  check_shape(name, gradient, shape_of(of));
  check_output_type(name, gradient, of.dtype, is_added, "is_accumulating");
}

void check_made_for(const AttentionProblem& seen, const AttentionProblem& made_for) {
  if (seen == made_for) return;
  throw invalid("work", "for other shapes or types", "a list made for these tensors");
}

}  // namespace

AttentionProblem problem_of(const ForwardArgs& args) {
  return {.q = shape_of(args.q),
          .k = shape_of(args.k),
          .v = shape_of(args.v),
          .type = args.q.dtype,
          .device = args.q.device};
}

AttentionProblem problem_of(const BackwardArgs& args) {
  return {.q = shape_of(args.q),
          .k = shape_of(args.k),
          .v = shape_of(args.v),
          .type = args.q.dtype,
          .dout_type = args.dout.dtype,
          .device = args.q.device};
}

void check_problem(const AttentionLimits& limits, const ForwardArgs& args) {
  check_inputs(limits, args.q, args.k, args.v);
}

void check_problem(const AttentionLimits& limits, const BackwardArgs& args) {
  check_inputs(limits, args.q, args.k, args.v);
  check_dout(args);
}

void check_call(const AttentionLimits& limits, const ForwardArgs& args,
                const AttentionProblem& made_for) {
  check_inputs(limits, args.q, args.k, args.v);
  check_shape("out", args.out, {args.q.shape[0], args.q.shape[1], args.v.shape[2]});
  check_output_type("out", args.out, args.q.dtype, args.is_merging, "is_merging");
  check_like_lse("lse", args.lse, args.q);
  if (!args.max_logits.empty()) check_max_logits(args.max_logits, args.q);
  if (!args.sink.empty()) check_sink("sink", args.sink, args.params.sink_layout, args.q);
  for (const auto& [name, tensor] :
       {std::pair{"lse", &args.lse}, {"max_logits", &args.max_logits}, {"sink", &args.sink}}) {
    if (!tensor->empty()) check_device(name, *tensor, made_for.device);
  }
  for (const auto& [name, tensor] :
       {std::pair{"q", &args.q}, {"k", &args.k}, {"v", &args.v}, {"out", &args.out}}) {
    check_tensor(limits, name, *tensor, made_for.device);
  }
  check_options(limits, args.params,
                {.has_sink = !args.sink.empty(), .has_max_logits = !args.max_logits.empty()});
  check_made_for(problem_of(args), made_for);
}

void check_call(const AttentionLimits& limits, const BackwardArgs& args,
                const AttentionProblem& made_for) {
  check_inputs(limits, args.q, args.k, args.v);
  check_shape("out", args.out, {args.q.shape[0], args.q.shape[1], args.v.shape[2]});
  check_output_type("out", args.out, args.q.dtype, false, "");
  check_dout(args);
  check_gradient("dq", args.dq, args.q, args.is_accumulating);
  check_gradient("dk", args.dk, args.k, args.is_accumulating);
  check_gradient("dv", args.dv, args.v, args.is_accumulating);
  for (const auto& [name, tensor] : {std::pair{"q", &args.q},
                                     {"k", &args.k},
                                     {"v", &args.v},
                                     {"out", &args.out},
                                     {"dout", &args.dout},
                                     {"dq", &args.dq},
                                     {"dk", &args.dk},
                                     {"dv", &args.dv}}) {
    check_tensor(limits, name, *tensor, made_for.device);
  }
  for (const auto& [name, tensor] : {std::pair{"lse", &args.lse}, {"dlse", &args.dlse}}) {
    if (tensor == &args.dlse && tensor->empty()) continue;
    check_like_lse(name, *tensor, args.q);
    check_device(name, *tensor, made_for.device);
  }
  check_sink_gradient(args, made_for.device);
  check_options(limits, args.params,
                {.has_sink = !args.sink.empty(), .has_dlse = !args.dlse.empty()});
  check_made_for(problem_of(args), made_for);
}

void check_workspace(const DeviceWorkspace& workspace, std::int64_t size_bytes) {
  if (workspace.data == nullptr) throw invalid("workspace.data", "null", "device memory");
  if (reinterpret_cast<std::uintptr_t>(workspace.data) % kArenaAlignment != 0) {
    throw invalid("workspace.data", workspace.data,
                  "multiples of " + std::to_string(kArenaAlignment));
  }
  if (workspace.size_bytes < size_bytes) {
    throw invalid("workspace.size_bytes", workspace.size_bytes,
                  std::to_string(size_bytes) + " or more");
  }
}

}  // namespace magi
