// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/check.hpp"
#include "cuda/order_event.hpp"
#include "cuda/ptx/order.cuh"
#include "support/gpu/key_sender.hpp"

namespace magi::test {
namespace {

constexpr int kThreads = 1024;
constexpr std::size_t kMaxSteps = 1024;
constexpr std::uint64_t kLimitNs = 10'000'000'000;
constexpr std::int64_t kChunkBytes = 16;

/// Rows of a contiguous tensor as chunks of 16 bytes, and where they come from.
struct RowCopy {
  uint4* target;
  const uint4* source;
  int row_chunks;
  int section_chunks;  ///< of a row: those of the heads of a section
};

struct SendParams {
  RowCopy tensors[2] = {};
  const KeyPart* parts;
  int num_parts;
  int num_sources;
  unsigned long long* flags;
  const std::uint64_t* expected;
  const SendStep* steps;
  int num_steps;
};

__device__ void copy_rows(const RowCopy& copy, const Range& rows, int section) {
  const int count = rows.size() * copy.section_chunks;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    const std::int64_t row = rows.begin + i / copy.section_chunks;
    const std::int64_t at =
        row * copy.row_chunks + section * copy.section_chunks + i % copy.section_chunks;
    copy.target[at] = copy.source[at];
  }
}

__global__ void __launch_bounds__(kThreads) send_kernel(const __grid_constant__ SendParams params) {
  for (int s = 0; s < params.num_steps; ++s) {
    const SendStep step = params.steps[s];
    const std::uint64_t begin = ptx::global_time_ns();
    while (ptx::global_time_ns() - begin < static_cast<std::uint64_t>(step.delay_ns)) {
      ptx::sleep_ns(1000);
    }
    for (int p = 0; p < params.num_parts; ++p) {
      if (params.parts[p].source != step.source) continue;
      for (const RowCopy& copy : params.tensors) {
        copy_rows(copy, params.parts[p].rows, step.section);
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      ptx::fence_system();
      atomicExch_system(params.flags + step.section * params.num_sources + step.source,
                        static_cast<unsigned long long>(*params.expected));
    }
  }
}

__global__ void await_kernel(const std::uint64_t* flags, const std::uint64_t* expected, int count) {
  const std::uint64_t begin = ptx::global_time_ns();
  for (int i = 0; i < count; ++i) {
    while (ptx::load_relaxed_system(flags + i) < *expected) {
      if (ptx::global_time_ns() - begin > kLimitNs) return;
      ptx::sleep_ns(1000);
    }
  }
  ptx::fence_system();
}

std::size_t bytes_of(const TensorView& tensor) {
  return static_cast<std::size_t>(tensor.num_elements()) * dtype_bytes(tensor.dtype);
}

}  // namespace

KeySender::KeySender(const TensorView& k, const TensorView& v, const InFlightKeys& coming)
    : in_flight_(coming),
      parts_(to_device_sync<KeyPart>(coming.parts)),
      flags_(static_cast<std::size_t>(std::max(num_flags(), 1)) * sizeof(std::uint64_t)),
      expected_(sizeof(std::uint64_t)),
      steps_(kMaxSteps * sizeof(SendStep)) {
  const TensorView* views[] = {&k, &v};
  for (int i = 0; i < 2; ++i) {
    tensors_[i] = {*views[i], DeviceBuffer(bytes_of(*views[i]))};
    cuda_check(cudaMemcpy(tensors_[i].complete.data(), views[i]->data, bytes_of(*views[i]),
                          cudaMemcpyDeviceToDevice),
               "cudaMemcpy");
  }
  flags_.fill(0, nullptr);
  take_away_sync();
}

void KeySender::take_away_sync() {
  cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  for (const Tensor& tensor : tensors_) {
    const auto row_bytes = bytes_of(tensor.view) / static_cast<std::size_t>(tensor.view.shape[0]);
    for (const KeyPart& part : in_flight_.parts) {
      auto* rows = static_cast<std::uint8_t*>(tensor.view.data) +
                   static_cast<std::size_t>(part.rows.begin) * row_bytes;
      cuda_check(cudaMemset(rows, 0xff, static_cast<std::size_t>(part.rows.size()) * row_bytes),
                 "cudaMemset");
    }
  }
  ++round_;
  num_sent_ = 0;
  cuda_check(cudaMemcpy(expected_.data(), &round_, sizeof round_, cudaMemcpyHostToDevice),
             "cudaMemcpy");
  cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

void KeySender::send(std::span<const SendStep> steps, cudaStream_t stream) {
  MAGI_CHECK(num_sent_ + steps.size() <= kMaxSteps);
  auto* target = static_cast<SendStep*>(steps_.data()) + num_sent_;
  cuda_check(
      cudaMemcpyAsync(target, steps.data(), steps.size_bytes(), cudaMemcpyHostToDevice, stream),
      "cudaMemcpyAsync");
  num_sent_ += steps.size();
  SendParams params{.parts = static_cast<const KeyPart*>(parts_.data()),
                    .num_parts = static_cast<int>(in_flight_.parts.size()),
                    .num_sources = in_flight_.num_sources,
                    .flags = static_cast<unsigned long long*>(flags_.data()),
                    .expected = static_cast<const std::uint64_t*>(expected_.data()),
                    .steps = target,
                    .num_steps = static_cast<int>(steps.size())};
  for (int i = 0; i < 2; ++i) {
    const TensorView& view = tensors_[i].view;
    const auto chunks = static_cast<int>(view.shape[1] * view.shape[2] * 2 / kChunkBytes);
    params.tensors[i] = {.target = static_cast<uint4*>(view.data),
                         .source = static_cast<const uint4*>(tensors_[i].complete.data()),
                         .row_chunks = chunks,
                         .section_chunks = chunks / in_flight_.num_sections};
  }
  send_kernel<<<1, kThreads, 0, stream>>>(params);
  cuda_check(cudaGetLastError(), "send_kernel");
}

void KeySender::await(cudaStream_t stream) const {
  await_kernel<<<1, 1, 0, stream>>>(static_cast<const std::uint64_t*>(flags_.data()),
                                    static_cast<const std::uint64_t*>(expected_.data()),
                                    num_flags());
  cuda_check(cudaGetLastError(), "await_kernel");
}

void KeySender::send_behind(std::span<const SendStep> steps, const Stream& sending,
                            cudaStream_t stream) {
  OrderEvent event;
  event.record(stream);
  event.await(sending.handle());
  send(steps, sending.handle());
  await(stream);
}

KeyArrivals KeySender::arrivals(std::int64_t spin_budget_ns) const {
  return {.flags = static_cast<const std::uint64_t*>(flags_.data()),
          .expected = static_cast<const std::uint64_t*>(expected_.data()),
          .spin_budget_ns = spin_budget_ns};
}

std::vector<SendStep> KeySender::all_steps() const {
  std::vector<SendStep> steps;
  for (std::int32_t section = 0; section < in_flight_.num_sections; ++section) {
    for (std::int32_t source = 0; source < in_flight_.num_sources; ++source) {
      steps.push_back({source, section});
    }
  }
  return steps;
}

std::vector<SendStep> KeySender::shuffled_steps(RandomStream& random,
                                                std::int64_t max_delay_ns) const {
  std::vector<SendStep> steps = all_steps();
  for (SendStep& step : steps) {
    const auto permille = static_cast<std::int64_t>(random.between(0, 1000));
    step.delay_ns = max_delay_ns * permille / 1000;
  }
  for (auto i = static_cast<std::int32_t>(steps.size()); i > 1; --i) {
    std::swap(steps[static_cast<std::size_t>(i - 1)],
              steps[static_cast<std::size_t>(random.between(0, i - 1))]);
  }
  return steps;
}

}  // namespace magi::test
