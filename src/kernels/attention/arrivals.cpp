// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <string>

#include "base/check.hpp"
#include "kernels/attention/backend.hpp"
#include "kernels/attention/checks.hpp"

// Keys that come while a run computes: what a backend does that does not take them, and checks.
namespace magi {
namespace {

[[noreturn]] void refuse_in_flight(const AttentionBackend& backend) {
  throw invalid("backend", backend.name(), "backends that take in-flight keys");
}

[[noreturn]] void refuse_arrivals() {
  throw invalid("arrivals", "given", "none where nothing was prepared for in-flight keys");
}

void check_part_gradient(const std::string& name, const PartGradients& gradient, DType type) {
  const auto& [dk, dv] = gradient;
  if (dk.empty() != dv.empty()) throw invalid(name, "one of dk and dv", "both or none");
  if (dk.empty()) return;
  if ((dk.dtype != DType::Float32 && dk.dtype != type) || dv.dtype != dk.dtype) {
    throw invalid(name + " types",
                  std::string(dtype_name(dk.dtype)) + " and " + dtype_name(dv.dtype),
                  std::string("both float32 or both ") + dtype_name(type));
  }
  constexpr std::int64_t kUnit = 16;  // rows are written in chunks of 16 bytes
  const auto element = static_cast<std::int64_t>(dtype_bytes(dk.dtype));
  const auto check = [&](const char* field, std::int64_t bytes) {
    if (bytes % kUnit != 0) throw invalid(name + field, bytes, "multiples of 16 bytes");
  };
  check(".dk.data", reinterpret_cast<std::intptr_t>(dk.data));
  check(".dv.data", reinterpret_cast<std::intptr_t>(dv.data));
  for (std::size_t axis = 0; axis < 2; ++axis) {
    check(".dk.stride", dk.stride[axis] * element);
    check(".dv.stride", dv.stride[axis] * element);
  }
}

}  // namespace

std::shared_ptr<const PreparedForward> AttentionBackend::prepare_in_flight_forward(
    const ForwardArgs& /*args*/, const ForwardTuning& /*tuning*/,
    const InFlightKeys& /*coming*/) const {
  refuse_in_flight(*this);
}

std::shared_ptr<const PreparedBackward> AttentionBackend::prepare_in_flight_backward(
    const BackwardArgs& /*args*/, const BackwardTuning& /*tuning*/,
    const InFlightKeys& /*coming*/) const {
  refuse_in_flight(*this);
}

std::unique_ptr<InFlightForward> PreparedForward::begin_in_flight(
    const ForwardArgs& /*args*/, const DeviceWorkspace& /*workspace*/,
    const KeyArrivals& /*arrivals*/, void* /*stream*/) const {
  refuse_arrivals();
}

std::unique_ptr<InFlightBackward> PreparedBackward::begin_in_flight(
    const BackwardArgs& /*args*/, const DeviceWorkspace& /*workspace*/,
    const BackwardArrivals& /*arrivals*/, void* /*stream*/) const {
  refuse_arrivals();
}

void check_arrivals(const KeyArrivals& arrivals) {
  const auto check_with = [](const char* name, const void* word, const void* other) {
    if (word == nullptr && other != nullptr) throw invalid(name, "null", "device memory");
  };
  check_with("arrivals.flags", arrivals.flags, arrivals.expected);
  check_with("arrivals.expected", arrivals.expected, arrivals.flags);
  if (arrivals.spin_budget_ns < 0 || arrivals.spin_budget_ns > kMaxSpinBudgetNs) {
    throw invalid("arrivals.spin_budget_ns", arrivals.spin_budget_ns,
                  "0 to " + std::to_string(kMaxSpinBudgetNs));
  }
}

void check_own_keys(const AttentionLimits& limits, const KeyArrivals& arrivals,
                    std::int32_t own_rows, const TensorView& k, const TensorView& v) {
  const auto check = [&](const char* name, const TensorView& own, TensorView like) {
    if (own_rows == 0) {
      if (own.data != nullptr) throw invalid(name, "given", "none where no own rows were prepared");
      return;
    }
    if (own.data == nullptr) throw invalid(std::string(name) + ".data", "null", "device memory");
    like.shape[0] = own_rows;
    if (own.rank != 3 || own.shape != like.shape || own.dtype != like.dtype ||
        own.device != like.device) {
      throw invalid(name, "of another shape, type or device",
                    std::to_string(own_rows) + " rows, otherwise like all keys");
    }
    check_layout(limits, name, own);
  };
  check("arrivals.own_k", arrivals.own_k, k);
  check("arrivals.own_v", arrivals.own_v, v);
}

void check_part_gradients(std::span<const PartGradients> gradients, const BackwardArgs& args,
                          std::size_t num_parts) {
  if (gradients.empty()) return;
  if (gradients.size() != num_parts) {
    throw invalid("number of gradients", gradients.size(),
                  "0 or that of parts, " + std::to_string(num_parts));
  }
  if (args.is_accumulating && !args.is_writing_keys) {
    throw invalid("gradients of parts", "given",
                  "none where is_accumulating without is_writing_keys");
  }
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    check_part_gradient("gradients[" + std::to_string(i) + "]", gradients[i], args.k.dtype);
  }
}

}  // namespace magi
