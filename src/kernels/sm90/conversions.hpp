// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/sm90/arguments.hpp"
#include "magi/attention_cuda.hpp"

// From the arguments of a call, which have been checked, to those of the kernels.
namespace magi::sm90 {

inline std::int32_t to_int(std::int64_t value) { return static_cast<std::int32_t>(value); }

/// SMs of `device` less the margin; throws InvalidArgument naming the margin.
std::int32_t count_free_sms(std::int32_t device, std::int32_t sm_margin);

/// Bytes of the current device's L2 cache that rows which CTAs walk at one time may fill.
std::int64_t cache_bytes();

ScoreScale score_scale(const AttentionParams& params, std::int64_t dim_qk);
StridedRows strided_rows(const TensorView& tensor);
SinkRows sink_rows(const TensorView& sink, SinkLayout layout);

}  // namespace magi::sm90
