// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "kernels/sm90/arguments.hpp"
#include "magi/attention_cuda.hpp"

// Checks and conversions that the calls on GPUs have in common. A check throws InvalidArgument
// naming the tensor, the value seen and the values allowed.
namespace magi::sm90 {

inline std::int32_t to_int(std::int64_t value) { return static_cast<std::int32_t>(value); }

inline constexpr std::int64_t kWorkspaceAlignment = 256;

void check_shape(const char* name, const TensorView& tensor, std::array<std::int64_t, 3> shape);
/// q, k and v: what a work list depends on.
void check_inputs(const TensorView& q, const TensorView& k, const TensorView& v);
void check_device(const char* name, const TensorView& tensor, std::int32_t device);
/// A tensor with data, if it has elements, on `device`, that bulk copies can read.
void check_copied(const char* name, const TensorView& tensor, std::int32_t device);
/// float32 [rows, heads] with data.
void check_float_rows(const char* name, const TensorView& tensor, std::int64_t rows,
                      std::int64_t heads);
/// Sink logits or their gradients for the rows and heads of `q`.
void check_sink(const std::string& name, const TensorView& sink, SinkLayout layout,
                const TensorView& q);
void check_params(const AttentionParams& params);
/// Memory of `size_bytes` or more, aligned to kWorkspaceAlignment.
void check_workspace(const DeviceWorkspace& workspace, std::int64_t size_bytes);
/// SMs of `device` less the margin.
std::int32_t count_free_sms(std::int32_t device, std::int32_t sm_margin);

ScoreScale score_scale(const AttentionParams& params, std::int64_t dim_qk);
StridedRows strided_rows(const TensorView& tensor);
SinkRows sink_rows(const TensorView& sink, SinkLayout layout);

}  // namespace magi::sm90
