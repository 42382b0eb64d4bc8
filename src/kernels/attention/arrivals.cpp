// SPDX-License-Identifier: Apache-2.0
#include "base/check.hpp"
#include "kernels/attention/backend.hpp"
#include "kernels/attention/checks.hpp"

// Keys that come while a run computes: what a backend does that does not take them, and checks.
namespace magi {
namespace {

[[noreturn]] void refuse_coming(const AttentionBackend& backend) {
  throw invalid("backend", backend.name(), "backends that take coming keys");
}

[[noreturn]] void refuse_arrivals() {
  throw invalid("arrivals", "given", "none where nothing was prepared for coming keys");
}

}  // namespace

std::shared_ptr<const PreparedForward> AttentionBackend::prepare_coming_forward(
    const ForwardArgs& /*args*/, const ForwardTuning& /*tuning*/,
    const ComingKeys& /*coming*/) const {
  refuse_coming(*this);
}

std::shared_ptr<const PreparedBackward> AttentionBackend::prepare_coming_backward(
    const BackwardArgs& /*args*/, const BackwardTuning& /*tuning*/,
    const ComingKeys& /*coming*/) const {
  refuse_coming(*this);
}

void PreparedForward::run_coming(const ForwardArgs& /*args*/, const DeviceWorkspace& /*workspace*/,
                                 const KeyArrivals& /*arrivals*/, void* /*stream*/) const {
  refuse_arrivals();
}

void PreparedBackward::run_coming(const BackwardArgs& /*args*/,
                                  const DeviceWorkspace& /*workspace*/,
                                  const KeyArrivals& /*arrivals*/, void* /*stream*/) const {
  refuse_arrivals();
}

void check_arrivals(const KeyArrivals& arrivals) {
  if (arrivals.flags == nullptr) throw invalid("arrivals.flags", "null", "device memory");
  if (arrivals.expected == nullptr) throw invalid("arrivals.expected", "null", "device memory");
  if (arrivals.patience_ns < 0) {
    throw invalid("arrivals.patience_ns", arrivals.patience_ns, "0 or more");
  }
  if (!arrivals.await) throw invalid("arrivals.await", "empty", "a function");
}

}  // namespace magi
