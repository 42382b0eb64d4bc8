// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>

#include "base/check.hpp"
#include "kernels/attention/backend.hpp"

namespace magi {
namespace {

// Kernels compute in float32, in units of log2(e), and multiply scores by the quotient.
constexpr double kLeastScale = 1e-30;
constexpr double kMostScale = 1e30;
constexpr double kMostQuotient = 1e36;

bool is_scale(double value) {
  return value == 0.0 || (value >= kLeastScale && value <= kMostScale);
}

void check_float_scales(const AttentionParams& params) {
  const double scale = params.softmax_scale, softcap = params.softcap;
  if (!is_scale(scale)) throw invalid("softmax_scale", scale, "0 (the default) or 1e-30 to 1e30");
  if (!is_scale(softcap)) throw invalid("softcap", softcap, "0 (off) or 1e-30 to 1e30");
  if (scale == 0.0 || softcap == 0.0) return;
  const double quotient = scale / softcap;
  if (quotient >= 1.0 / kMostQuotient && quotient <= kMostQuotient) return;
  throw invalid("softmax_scale / softcap", quotient, "1e-36 to 1e36");
}

void check_any_scales(const AttentionParams& params) {
  if (!std::isfinite(params.softmax_scale)) {
    throw invalid("softmax_scale", params.softmax_scale, "a finite number");
  }
  if (!std::isfinite(params.softcap) || params.softcap < 0.0) {
    throw invalid("softcap", params.softcap, "0 (off) or a positive finite number");
  }
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

AttentionLimits attention_limits(std::int32_t device) { return find_backend("", device)->limits(); }

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

void check_options(const AttentionLimits& limits, const AttentionParams& params,
                   const AttentionFeatures& features) {
  if (limits.has_any_scale) {
    check_any_scales(params);
  } else {
    check_float_scales(params);
  }
  if (params.softcap > 0.0 && !limits.has_softcap) {
    throw invalid("softcap", params.softcap, "0 (off) with this backend");
  }
  check_feature(features.has_sink, limits.has_sink, "sink");
  check_feature(features.has_max_logits, limits.has_max_logits, "max_logits");
  check_feature(features.has_dlse, limits.has_dlse, "dlse");
}

void check_layout(const AttentionLimits& limits, const char* name, const TensorView& tensor) {
  const std::string prefix(name);
  if (tensor.shape[2] > 1 && tensor.stride[2] != 1) {
    throw invalid(prefix + ".stride[2]", tensor.stride[2], "1");
  }
  const std::int64_t unit = limits.stride_bytes;
  for (std::size_t axis = 0; axis < 2; ++axis) {
    const std::int64_t bytes = stride_bytes(tensor, axis);
    if (bytes < 0 || bytes % unit != 0 || bytes >= (std::int64_t{1} << 40)) {
      throw invalid(prefix + ".stride[" + std::to_string(axis) + "]", tensor.stride[axis],
                    "multiples of " + std::to_string(unit) + " bytes from 0 to below 2^40 bytes");
    }
  }
  const auto misfit =
      reinterpret_cast<std::uintptr_t>(tensor.data) % static_cast<std::uintptr_t>(unit);
  if (misfit != 0) throw invalid(prefix + ".data mod " + std::to_string(unit), misfit, "0");
}

}  // namespace magi
