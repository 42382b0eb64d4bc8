// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/checks.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.hpp"
#include "cuda/device.hpp"
#include "cuda/tensor_map.hpp"

namespace magi::sm90 {
namespace {

constexpr std::int32_t kMaxSinks = 8;
constexpr double kSlackLog2 = 8.0;  // P reaches 2^8: far from what float16 holds

void check_dim(const char* name, std::int64_t dim) {
  if (dim < 8 || dim > 128 || dim % 8 != 0) {
    throw invalid(name, dim, "multiples of 8 from 8 to 128");
  }
}

void check_rows(const char* name, std::int64_t rows) {
  if (rows < 0 || rows > kMaxRows) throw invalid(name, rows, "0 to 2^30 - 1");
}

}  // namespace

void check_shape(const char* name, const TensorView& tensor, std::array<std::int64_t, 3> shape) {
  const bool is_equal =
      tensor.rank == 3 && std::equal(shape.begin(), shape.end(), tensor.shape.begin());
  if (is_equal) return;
  std::string seen = "of rank " + std::to_string(tensor.rank) + ", [";
  for (std::size_t i = 0; i < 3; ++i)
    seen += std::to_string(tensor.shape[i]) + (i < 2 ? ", " : "]");
  throw invalid(name, seen,
                "[" + std::to_string(shape[0]) + ", " + std::to_string(shape[1]) + ", " +
                    std::to_string(shape[2]) + "]");
}

void check_inputs(const TensorView& q, const TensorView& k, const TensorView& v) {
  const DType type = q.dtype;
  if (type != DType::BFloat16 && type != DType::Float16) {
    throw invalid("q.dtype", dtype_name(type), "bfloat16, float16");
  }
  if (k.dtype != type) throw invalid("k.dtype", dtype_name(k.dtype), "that of q");
  if (v.dtype != type) throw invalid("v.dtype", dtype_name(v.dtype), "that of q");
  check_rows("q.shape[0]", q.shape[0]);
  check_rows("k.shape[0]", k.shape[0]);
  check_dim("q.shape[2]", q.shape[2]);
  check_dim("v.shape[2]", v.shape[2]);
  check_shape("q", q, {q.shape[0], q.shape[1], q.shape[2]});
  check_shape("k", k, {k.shape[0], k.shape[1], q.shape[2]});
  check_shape("v", v, {k.shape[0], k.shape[1], v.shape[2]});
}

void check_device(const char* name, const TensorView& tensor, std::int32_t device) {
  if (tensor.device == device) return;
  throw invalid(std::string(name) + ".device", tensor.device,
                "the work list's device " + std::to_string(device));
}

void check_copied(const char* name, const TensorView& tensor, std::int32_t device) {
  check_device(name, tensor, device);
  if (tensor.empty() && tensor.num_elements() > 0) {
    throw invalid(std::string(name) + ".data", "null", "device memory");
  }
  check_copyable(name, tensor);
}

void check_float_rows(const char* name, const TensorView& tensor, std::int64_t rows,
                      std::int64_t heads) {
  if (tensor.dtype != DType::Float32) {
    throw invalid(std::string(name) + ".dtype", dtype_name(tensor.dtype), "float32");
  }
  if (tensor.empty() && tensor.num_elements() > 0) {
    throw invalid(std::string(name) + ".data", "null", "device memory");
  }
  if (tensor.rank != 2 || tensor.shape[0] != rows || tensor.shape[1] != heads) {
    throw invalid(std::string(name) + ".shape", tensor.shape[0], "[rows of q, heads of q]");
  }
}

void check_sink(const std::string& name, const TensorView& sink, SinkLayout layout,
                const TensorView& q) {
  if (sink.dtype != DType::Float32) {
    throw invalid(name + ".dtype", dtype_name(sink.dtype), "float32");
  }
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

void check_params(const AttentionParams& params) {
  // Kernels compute in float32, in units of log2(e).
  constexpr double kMost = 1e30;
  if (!(params.softmax_scale >= 0.0 && params.softmax_scale <= kMost)) {
    throw invalid("softmax_scale", params.softmax_scale, "0 (the default) or positive, up to 1e30");
  }
  if (!(params.softcap >= 0.0 && params.softcap <= kMost)) {
    throw invalid("softcap", params.softcap, "0 (off) or positive, up to 1e30");
  }
}

void check_workspace(const DeviceWorkspace& workspace, std::int64_t size_bytes) {
  if (workspace.data == nullptr) throw invalid("workspace.data", "null", "device memory");
  if (reinterpret_cast<std::uintptr_t>(workspace.data) % kWorkspaceAlignment != 0) {
    throw invalid("workspace.data", workspace.data, "multiples of 256");
  }
  if (workspace.size_bytes < size_bytes) {
    throw invalid("workspace.size_bytes", workspace.size_bytes,
                  std::to_string(size_bytes) + " or more");
  }
}

std::int32_t count_free_sms(std::int32_t device, std::int32_t sm_margin) {
  const std::int32_t num_sms = device_info(device).num_sms;
  if (sm_margin < 0 || sm_margin >= num_sms) {
    throw invalid("sm_margin", sm_margin, "0 to one less than the device's SMs");
  }
  return num_sms - sm_margin;
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
