// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "kernels/cpu/attention.hpp"
#include "kernels/cpu/host_array.hpp"
#include "mask/random_mask.hpp"
#include "reference/dense_attention.hpp"
#include "reference/error_rule.hpp"

namespace magi::testing {

/// A whole problem. The arrays of `dense` hold values that `dtype` represents exactly, so that
/// kernels and reference see the same numbers.
struct AttentionCase {
  Mask mask;
  reference::DenseInput dense;
  std::vector<double> dout;
  std::vector<double> dlse;  ///< empty: none
  DType dtype = DType::Float32;
  DType result_dtype = DType::Float32;  ///< of out, dq, dk, dv
  Layout layout = Layout::Packed;
  bool is_fast_backward = false;
  bool is_writing_keys = false;  ///< where run_backward adds to what is there
  bool is_on_gpu = false;        ///< lse and max_logits come from approximate exponentials
  bool has_huge_logits = false;  ///< differences of products of dout and v leave a rest that counts

  DType real() const { return dtype == DType::Float64 ? DType::Float64 : DType::Float32; }
  reference::RowCounts row_counts = {};  ///< where there is no mask, which sees what
  reference::RowCounts counts() const {
    return row_counts ? row_counts : reference::counts_of(mask);
  }
  std::string describe() const;
};

DType any_float_type(RandomStream& random);

/// Heads, dims, scale, softcap, sink, layout and dlse are drawn as well.
AttentionCase random_case(RandomStream& random, DType dtype, const RandomMaskOptions& options);

/// Fills q, k, v, dout (and sink, dlse where `dense` and the case ask for them) for the sizes that
/// `dense` has.
void draw_values(RandomStream& random, AttentionCase& test);

struct ForwardResult {
  std::vector<double> out;
  std::vector<double> lse;
  std::vector<double> max_logits;
  friend bool operator==(const ForwardResult&, const ForwardResult&) = default;
};

/// Runs the kernel; fails the test if it wrote into gaps.
ForwardResult run_forward(const AttentionCase& test, cpu::Isa isa = cpu::Isa::Best);

/// Runs one call per part of the slices, each merging into what came before; the sink goes to call
/// `sink_part`.
ForwardResult run_merged(const AttentionCase& test,
                         const std::vector<std::vector<BandSlice>>& parts, std::size_t sink_part);

/// Runs the backward kernel on `output`; results are added to `start` in every element where given.
reference::DenseGradients run_backward(const AttentionCase& test,
                                       const reference::DenseOutput& output,
                                       cpu::Isa isa = cpu::Isa::Best,
                                       const double* start = nullptr);

/// Expects results within the error rule of the case's types.
void expect_forward_close(const AttentionCase& test, const ForwardResult& got);
void expect_backward_close(const AttentionCase& test, const reference::DenseOutput& output,
                           const reference::DenseGradients& got);

}  // namespace magi::testing
