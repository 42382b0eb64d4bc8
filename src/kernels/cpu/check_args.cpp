// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/check_args.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/check.hpp"

namespace magi::cpu {
namespace {

using Extents = std::vector<std::int64_t>;
using DTypes = std::vector<DType>;

std::string names_of(const DTypes& dtypes) {
  std::string text;
  for (const DType dtype : dtypes)
    text += (text.empty() ? "" : ", ") + std::string(dtype_name(dtype));
  return text;
}

std::string axis_name(const std::string& tensor, const char* field, std::size_t axis) {
  return tensor + "." + field + "[" + std::to_string(axis) + "]";
}

void check_dtype(const std::string& name, const TensorView& view, const DTypes& allowed) {
  if (std::find(allowed.begin(), allowed.end(), view.dtype) != allowed.end()) return;
  throw invalid(name + ".dtype", dtype_name(view.dtype), names_of(allowed));
}

void check_rank(const std::string& name, const TensorView& view, std::int32_t rank) {
  if (view.device != kCpuDevice) {
    throw invalid(name + ".device", view.device, "-1 (the CPU)");
  }
  if (view.rank != rank) throw invalid(name + ".rank", view.rank, std::to_string(rank));
}

void check_shape(const std::string& name, const TensorView& view, const Extents& shape) {
  check_rank(name, view, static_cast<std::int32_t>(shape.size()));
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    if (view.shape[axis] == shape[axis]) continue;
    throw invalid(axis_name(name, "shape", axis), view.shape[axis], std::to_string(shape[axis]));
  }
}

/// A tensor without elements needs no data.
void check_data(const std::string& name, const TensorView& view) {
  if (view.data == nullptr && view.num_elements() != 0) {
    throw invalid(name, "missing", "a tensor with data");
  }
}

void check_contiguous_dim(const std::string& name, const TensorView& view) {
  if (view.shape[2] > 1 && view.stride[2] != 1) {
    throw invalid(axis_name(name, "stride", 2), view.stride[2], "1 (the last axis is contiguous)");
  }
}

/// q, k and v give the sizes; all other tensors are measured by them.
void check_input(const std::string& name, const TensorView& view, DType like) {
  check_rank(name, view, 3);
  for (std::size_t axis = 0; axis < 3; ++axis) {
    const std::int64_t extent = view.shape[axis];
    if (axis == 0 && (extent < 0 || extent > kMaxRows)) {
      throw invalid(axis_name(name, "shape", axis), extent, "0 to " + std::to_string(kMaxRows));
    }
    if (axis > 0 && extent < 1) throw invalid(axis_name(name, "shape", axis), extent, "1 or more");
  }
  check_dtype(name, view, {like});
  check_data(name, view);
  check_contiguous_dim(name, view);
}

struct Input {
  const TensorView &q, &k, &v;
  std::span<const BandSlice> slices;
  const AttentionParams& params;
};

void check_params(const AttentionParams& params) {
  if (!std::isfinite(params.softmax_scale)) {
    throw invalid("softmax_scale", params.softmax_scale, "a finite number");
  }
  if (!std::isfinite(params.softcap) || params.softcap < 0) {
    throw invalid("softcap", params.softcap, "0 (off) or a positive finite number");
  }
}

/// Scores in float32 are products with the scale, or with the quotient and then with softcap.
void check_float_scales(const AttentionParams& params) {
  constexpr double kLeast = 1e-30, kMost = 1e30;
  const auto is_scale = [](double value) {
    return std::abs(value) >= kLeast && std::abs(value) <= kMost;
  };
  const double scale = params.softmax_scale, softcap = params.softcap;
  if (scale != 0.0 && !is_scale(scale)) {
    throw invalid("softmax_scale", scale, "0 (the default) or magnitudes from 1e-30 to 1e+30");
  }
  if (softcap != 0.0 && !is_scale(softcap)) {
    throw invalid("softcap", softcap, "0 (off) or 1e-30 to 1e+30");
  }
  if (scale == 0.0 || softcap == 0.0 || is_scale(scale / softcap)) return;
  throw invalid("softmax_scale / softcap", scale / softcap, "magnitudes from 1e-30 to 1e+30");
}

Sizes check_inputs(const Input& in) {
  check_dtype("q", in.q, {DType::Float64, DType::Float32, DType::Float16, DType::BFloat16});
  check_input("q", in.q, in.q.dtype);
  check_input("k", in.k, in.q.dtype);
  check_input("v", in.v, in.q.dtype);
  check_shape("k", in.k, {in.k.shape[0], in.k.shape[1], in.q.shape[2]});
  check_shape("v", in.v, {in.k.shape[0], in.k.shape[1], in.v.shape[2]});
  const std::int64_t heads_q = in.q.shape[1], heads_kv = in.k.shape[1];
  if (heads_q % heads_kv != 0) {
    throw invalid("heads_q", heads_q, "a multiple of heads_kv = " + std::to_string(heads_kv));
  }
  Sizes sizes{.rows_q = static_cast<std::int32_t>(in.q.shape[0]),
              .rows_k = static_cast<std::int32_t>(in.k.shape[0]),
              .heads_q = heads_q,
              .heads_kv = heads_kv,
              .group = heads_q / heads_kv,
              .dim_qk = in.q.shape[2],
              .dim_v = in.v.shape[2],
              .real = in.q.dtype == DType::Float64 ? DType::Float64 : DType::Float32};
  check_params(in.params);
  if (sizes.real == DType::Float32) check_float_scales(in.params);
  const Mask mask{sizes.rows_q, sizes.rows_k, {in.slices.begin(), in.slices.end()}};
  validate(mask);
  sizes.area = area(mask);
  return sizes;
}

std::int64_t check_sink(const std::string& name, const TensorView& sink, SinkLayout layout,
                        const Sizes& sizes) {
  const bool is_per_row = layout == SinkLayout::RowSinkHead;
  if (!is_per_row && layout != SinkLayout::SinkHead) {
    throw invalid("sink_layout", static_cast<std::int32_t>(layout), "0 (sh) or 1 (ssh)");
  }
  check_rank(name, sink, is_per_row ? 3 : 2);
  const std::size_t axis = is_per_row ? 1 : 0;
  const std::int64_t count = sink.shape[axis];
  if (count < 1 || count > kMaxSinks) {
    throw invalid("num_sinks (" + axis_name(name, "shape", axis) + ")", count, "1 to 8");
  }
  check_shape(
      name, sink,
      is_per_row ? Extents{sizes.rows_q, count, sizes.heads_q} : Extents{count, sizes.heads_q});
  check_dtype(name, sink, {sizes.real});
  return count;
}

void check_like_q(const std::string& name, const TensorView& view, const Sizes& sizes) {
  check_shape(name, view, {sizes.rows_q, sizes.heads_q});
  check_dtype(name, view, {sizes.real});
  check_data(name, view);
}

void check_rows(const std::string& name, const TensorView& view, const Extents& shape,
                const DTypes& dtypes) {
  check_shape(name, view, shape);
  check_dtype(name, view, dtypes);
  check_data(name, view);
  check_contiguous_dim(name, view);
}

/// Results that are added to hold the computing type, else the input's type will do as well.
DTypes result_types(const Sizes& sizes, DType input, bool is_updated) {
  if (is_updated || input == sizes.real) return {sizes.real};
  return {input, sizes.real};
}

}  // namespace

Sizes check_args(const ForwardArgs& args) {
  Sizes sizes = check_inputs({args.q, args.k, args.v, args.slices, args.params});
  check_rows("out", args.out, {sizes.rows_q, sizes.heads_q, sizes.dim_v},
             result_types(sizes, args.q.dtype, args.is_merging));
  check_like_q("lse", args.lse, sizes);
  if (!args.sink.empty()) {
    sizes.num_sinks = check_sink("sink", args.sink, args.params.sink_layout, sizes);
  }
  if (!args.max_logits.empty()) {
    check_shape("max_logits", args.max_logits, {sizes.heads_q});
    check_dtype("max_logits", args.max_logits, {sizes.real});
  }
  return sizes;
}

Sizes check_args(const BackwardArgs& args) {
  Sizes sizes = check_inputs({args.q, args.k, args.v, args.slices, args.params});
  const Extents like_out{sizes.rows_q, sizes.heads_q, sizes.dim_v};
  const DTypes given = result_types(sizes, args.q.dtype, false);
  check_rows("out", args.out, like_out, given);
  check_rows("dout", args.dout, like_out, given);
  check_like_q("lse", args.lse, sizes);
  if (!args.dlse.empty()) check_like_q("dlse", args.dlse, sizes);
  const DTypes written = result_types(sizes, args.q.dtype, args.is_accumulating);
  check_rows("dq", args.dq, {sizes.rows_q, sizes.heads_q, sizes.dim_qk}, written);
  check_rows("dk", args.dk, {sizes.rows_k, sizes.heads_kv, sizes.dim_qk}, written);
  check_rows("dv", args.dv, {sizes.rows_k, sizes.heads_kv, sizes.dim_v}, written);
  if (args.sink.empty() != args.dsink.empty()) {
    throw invalid(args.sink.empty() ? "sink" : "dsink", "missing",
                  "both of sink and dsink or none");
  }
  if (!args.sink.empty()) {
    sizes.num_sinks = check_sink("sink", args.sink, args.params.sink_layout, sizes);
    const auto shape = args.sink.shape.begin();
    check_shape("dsink", args.dsink, Extents(shape, shape + args.sink.rank));
    check_dtype("dsink", args.dsink, {sizes.real});
  }
  return sizes;
}

void check_lists(const KeyLists& lists, const Sizes& sizes) {
  if (sizes.area != 0) throw invalid("slices", "given", "none beside lists");
  check_rank("indices", lists.indices, 3);
  check_shape("indices", lists.indices, {sizes.rows_q, sizes.heads_kv, lists.indices.shape[2]});
  check_dtype("indices", lists.indices, {DType::Int32});
  check_data("indices", lists.indices);
  if (lists.block_keys < 1 || lists.block_keys > kMaxRows) {
    throw invalid("block_keys", lists.block_keys, "1 to " + std::to_string(kMaxRows));
  }
  if (lists.report.empty()) return;
  check_shape("report", lists.report, {2});
  check_dtype("report", lists.report, {DType::Int64});
}

}  // namespace magi::cpu
