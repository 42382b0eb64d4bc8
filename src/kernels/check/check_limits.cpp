// SPDX-License-Identifier: Apache-2.0
#include "kernels/check/check_limits.hpp"

#include <cmath>
#include <limits>

#include "base/check.hpp"

namespace magi {
namespace {

/// Magnitudes of scale, softcap and their quotient, with which scores are multiplied.
struct Extremes {
  double least, most;
  const char* text;
};
constexpr Extremes kFloat32Extremes{1e-30, 1e30, "1e-30 to 1e+30"};
constexpr Extremes kFloat64Extremes{std::numeric_limits<double>::min(),
                                    std::numeric_limits<double>::max(), "2.3e-308 to 1.7e+308"};

/// NaN fails the comparisons.
void check_scales(const AttentionLimits& limits, const AttentionParams& params, DType sums) {
  const Extremes& extremes = sums == DType::Float64 ? kFloat64Extremes : kFloat32Extremes;
  const std::string range = extremes.text;
  const auto is_within = [&](double value) {
    return value >= extremes.least && value <= extremes.most;
  };
  const double scale = params.softmax_scale, softcap = params.softcap;
  const double magnitude = limits.has_any_scale ? std::abs(scale) : scale;
  if (scale != 0.0 && !is_within(magnitude)) {
    throw invalid(
        "softmax_scale", scale,
        "0 (the default) or " + (limits.has_any_scale ? "a magnitude of " + range : range));
  }
  if (softcap != 0.0 && !is_within(softcap))
    throw invalid("softcap", softcap, "0 (off) or " + range);
  if (scale == 0.0 || softcap == 0.0 || is_within(magnitude / softcap)) return;
  throw invalid("softmax_scale / softcap", magnitude / softcap, range);
}

std::string text_of(const HeadDims& dims) {
  std::string range = std::to_string(dims.min) + " to " + std::to_string(dims.max);
  if (dims.multiple == 1) return range;
  return "multiples of " + std::to_string(dims.multiple) + " from " + range;
}

void check_feature(bool is_asked, bool is_there, const char* name) {
  if (is_asked && !is_there) throw invalid(name, "given", "none with this backend");
}

/// Bytes between neighbours along `axis`; 0 where there are no neighbours.
std::int64_t stride_bytes(const TensorView& tensor, std::size_t axis) {
  if (tensor.shape[axis] <= 1) return 0;
  return tensor.stride[axis] * static_cast<std::int64_t>(dtype_bytes(tensor.dtype));
}

}  // namespace

void check_type(const AttentionLimits& limits, const char* name, DType type) {
  if (limits.takes(type)) return;
  std::string allowed;
  for (const DType other : {DType::Float64, DType::Float32, DType::Float16, DType::BFloat16}) {
    if (limits.takes(other))
      allowed += (allowed.empty() ? "" : ", ") + std::string(dtype_name(other));
  }
  throw invalid(name, dtype_name(type), allowed);
}

void check_head_dim(const HeadDims& dims, const std::string& name, std::int64_t dim,
                    const std::string& where) {
  if (dim >= dims.min && dim <= dims.max && dim % dims.multiple == 0) return;
  throw invalid(name, dim, where + text_of(dims));
}

void check_options(const AttentionLimits& limits, const AttentionParams& params, DType sums,
                   const AttentionFeatures& features) {
  check_scales(limits, params, sums);
  if (params.softcap > 0.0 && !limits.has_softcap) {
    throw invalid("softcap", params.softcap, "0 (off) with this backend");
  }
  check_feature(features.has_sink, limits.has_sink, "sink");
  check_feature(features.has_max_logits, limits.has_max_logits, "max_logits");
  check_feature(features.has_dlse, limits.has_dlse, "dlse");
}

void check_layout(const AttentionLimits& limits, const char* name, const TensorView& tensor) {
  const std::int64_t unit = limits.stride_bytes;
  for (std::size_t axis = 0; axis < 2; ++axis) {
    const std::int64_t bytes = stride_bytes(tensor, axis);
    if (bytes < 0 || bytes % unit != 0 || bytes >= (std::int64_t{1} << 40)) {
      throw invalid(std::string(name) + ".stride[" + std::to_string(axis) + "]",
                    tensor.stride[axis],
                    "multiples of " + std::to_string(unit) + " bytes from 0 to below 2^40 bytes");
    }
  }
  const auto misfit =
      reinterpret_cast<std::uintptr_t>(tensor.data) % static_cast<std::uintptr_t>(unit);
  if (misfit == 0) return;
  throw invalid(std::string(name) + ".data mod " + std::to_string(unit), misfit, "0");
}

}  // namespace magi
