// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/conversions.hpp"

#include <cmath>
#include <numbers>

#include "base/check.hpp"
#include "cuda/check.hpp"
#include "cuda/device.hpp"

namespace magi::sm90 {
namespace {

constexpr double kSlackLog2 = 8.0;  // P reaches 2^8: far from what float16 holds

}  // namespace

std::int32_t count_free_sms(std::int32_t device, std::int32_t sm_margin) {
  const std::int32_t num_sms = device_info(device).num_sms;
  if (sm_margin < 0 || sm_margin >= num_sms) {
    throw invalid("sm_margin", sm_margin, "0 to one less than the device's SMs");
  }
  return num_sms - sm_margin;
}

std::int64_t cache_bytes() {
  // 32 MiB of the 60 of an H200, where the constants of schedules were measured.
  constexpr int kNumerator = 8;
  constexpr int kDenominator = 15;
  int bytes = 0;
  cuda_check(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, current_device()),
             "cudaDeviceGetAttribute");
  return std::int64_t{bytes} * kNumerator / kDenominator;
}

ScoreScale score_scale(const AttentionParams& params, std::int64_t dim_qk) {
  const double softmax_scale = params.softmax_scale > 0.0
                                   ? params.softmax_scale
                                   : 1.0 / std::sqrt(static_cast<double>(dim_qk));
  const double softcap = params.softcap;
  const double unit = softcap > 0.0 ? softcap : softmax_scale;
  return {.exponent_scale = static_cast<float>(unit * std::numbers::log2e),
          .cap_scale = softcap > 0.0 ? static_cast<float>(softmax_scale / softcap) : 0.0f,
          .softmax_scale = static_cast<float>(softmax_scale),
          .slack = static_cast<float>(kSlackLog2 / (softmax_scale * std::numbers::log2e))};
}

StridedRows strided_rows(const TensorView& tensor) {
  return {tensor.data, tensor.stride[0], tensor.stride[1], tensor.dtype};
}

SinkRows sink_rows(const TensorView& sink, SinkLayout layout) {
  if (sink.empty()) return {};
  const auto* data = static_cast<const float*>(sink.data);
  if (layout == SinkLayout::SinkHead) {
    return {data, 0, sink.stride[0], to_int(sink.shape[0])};
  }
  return {data, sink.stride[0], sink.stride[1], to_int(sink.shape[1])};
}

}  // namespace magi::sm90
