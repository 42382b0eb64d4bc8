// SPDX-License-Identifier: Apache-2.0
#include "bench/kernel_bench.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <thread>

#include "bench/gemm.hpp"
#include "bench/telemetry.hpp"
#include "common/masks.hpp"
#include "common/random_values.hpp"
#include "cuda/device.hpp"
#include "cuda/stream.hpp"
#include "cuda/timing.hpp"
#include "draw/numbers.hpp"
#include "magi/attention_cuda.hpp"
#include "magi/attention_limits.hpp"
#include "magi/error.hpp"
#include "magi/mask.hpp"

namespace magi::cli {
namespace {

using Enqueue = std::function<void(cudaStream_t)>;
using Seconds = std::chrono::duration<double>;

/// Per visible pair, head and element of dim: two products forward, five backward.
constexpr double kForwardFlops = 4.0;
constexpr double kBackwardFlops = 10.0;
constexpr int kMaxBurst = 4000;
constexpr double kWarmSeconds = 1.0;  ///< until clock and temperature are those of a busy GPU

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void check_machine(const KernelBenchOptions& options) {
  const std::int32_t count = device_count();
  if (count == 0) throw std::runtime_error("no GPU is visible; the kernels need an H100 or H200");
  if (options.device >= count) {
    throw std::runtime_error("there is no GPU " + std::to_string(options.device) +
                             "; GPUs seen: " + std::to_string(count));
  }
  try {
    attention_limits(options.device);
  } catch (const InvalidArgument& error) {
    throw std::runtime_error("no kernels for GPU " + std::to_string(options.device) + ": " +
                             error.what());
  }
}

/// The tensors of one length.
struct BenchTensors {
  BenchTensors(const KernelBenchOptions& options, std::int64_t rows)
      : q(random_bfloat16(rows * options.heads_q * options.head_dim, 1)),
        k(random_bfloat16(rows * options.heads_kv * options.head_dim, 2)),
        v(random_bfloat16(rows * options.heads_kv * options.dim_v(), 3)),
        out(static_cast<std::size_t>(rows * options.heads_q * options.dim_v()) *
            sizeof(std::uint16_t)),
        lse(static_cast<std::size_t>(rows * options.heads_q) * sizeof(float)) {
    const auto view = [&](const DeviceBuffer& buffer, DType type,
                          std::initializer_list<std::int64_t> shape) {
      return contiguous_view(buffer.data(), type, shape, options.device);
    };
    args.q = view(q, DType::BFloat16, {rows, options.heads_q, options.head_dim});
    args.k = view(k, DType::BFloat16, {rows, options.heads_kv, options.head_dim});
    args.v = view(v, DType::BFloat16, {rows, options.heads_kv, options.dim_v()});
    args.out = view(out, DType::BFloat16, {rows, options.heads_q, options.dim_v()});
    args.lse = view(lse, DType::Float32, {rows, options.heads_q});
    if (!options.has_backward) return;
    dout = random_bfloat16(rows * options.heads_q * options.dim_v(), 4);
    dq = DeviceBuffer(q.size_bytes());
    dk = DeviceBuffer(k.size_bytes());
    dv = DeviceBuffer(v.size_bytes());
  }

  BackwardArgs backward_args() const {
    const auto like = [](TensorView view, const DeviceBuffer& buffer) {
      view.data = buffer.data();
      return view;
    };
    return {.q = args.q,
            .k = args.k,
            .v = args.v,
            .out = args.out,
            .lse = args.lse,
            .dout = like(args.out, dout),
            .dq = like(args.q, dq),
            .dk = like(args.k, dk),
            .dv = like(args.v, dv)};
  }

  DeviceBuffer q, k, v, out, lse, dout, dq, dk, dv;
  ForwardArgs args;
};

/// The inputs that all cases share.
class Bench {
 public:
  Bench(const KernelBenchOptions& options, const std::function<void(const std::string&)>& tell)
      : options_(options),
        gemm_(Gemm::open(options.cublas)),
        telemetry_(Telemetry::open(options.device)) {
    if (gemm_ == nullptr) tell("cuBLAS is not found: no share of a GEMM (see --cublas)");
    if (telemetry_ == nullptr) tell("NVML is not found: no clock and power");
    warm_up();
  }

  KernelBenchRow run_forward(const std::string& name, const Mask& mask,
                             const BenchTensors& tensors) const {
    ForwardArgs args = tensors.args;
    args.slices = mask.slices;
    const ForwardWork work(args, {.sm_margin = options_.sm_margin});
    KernelBenchRow row = row_of(name, mask, KernelPass::Forward);
    row.packed_heads = work.packed_heads();
    time([&](cudaStream_t stream) { attention_forward_cuda(args, work, stream); },
         kForwardFlops * pairs(row), row);
    return row;
  }

  /// After run_forward of the same mask, whose out and lse it reads.
  KernelBenchRow run_backward(const std::string& name, const Mask& mask,
                              const BenchTensors& tensors) const {
    BackwardArgs args = tensors.backward_args();
    args.slices = mask.slices;
    const BackwardWork work(args, {.sm_margin = options_.sm_margin});
    const DeviceBuffer memory(static_cast<std::size_t>(work.workspace_bytes()));
    const DeviceWorkspace workspace{memory.data(), work.workspace_bytes()};
    KernelBenchRow row = row_of(name, mask, KernelPass::Backward);
    row.packed_heads = work.packed_heads();
    time([&](cudaStream_t stream) { attention_backward_cuda(args, work, workspace, stream); },
         kBackwardFlops * pairs(row), row);
    return row;
  }

 private:
  static KernelBenchRow row_of(const std::string& name, const Mask& mask, KernelPass pass) {
    return {.mask = name,
            .pass = pass,
            .rows = mask.rows_q,
            .num_slices = std::ssize(mask.slices),
            .area = area(mask)};
  }

  /// Visible pairs of all heads, times the head dim, of two dims their mean.
  double pairs(const KernelBenchRow& row) const {
    const int dims = options_.head_dim + options_.dim_v();
    return static_cast<double>(row.area) * options_.heads_q * dims / 2.0;
  }

  void warm_up() const {
    if (!gemm_) return;
    const Enqueue multiply = [&](cudaStream_t stream) { gemm_->enqueue(stream); };
    burst_seconds(multiply, 1);
    const double once = burst_seconds(multiply, 2);
    burst_seconds(multiply, std::max(1, static_cast<int>(kWarmSeconds / once)));
  }

  double burst_seconds(const Enqueue& enqueue, int count) const {
    const Event begin;
    const Event end;
    begin.record(stream_.handle());
    for (int i = 0; i < count; ++i) enqueue(stream_.handle());
    end.record(stream_.handle());
    return end.seconds_since_sync(begin) / count;
  }

  int burst_length(const Enqueue& enqueue) const {
    burst_seconds(enqueue, 1);
    const double once = std::max(burst_seconds(enqueue, 2), 1e-7);
    return std::clamp(static_cast<int>(std::lround(options_.burst_seconds / once)), 1, kMaxBurst);
  }

  /// Clock and power in the middle of a burst.
  TelemetrySample sample(const Enqueue& enqueue, int count, double seconds) const {
    if (telemetry_ == nullptr) return {};
    for (int i = 0; i < count; ++i) enqueue(stream_.handle());
    std::this_thread::sleep_for(Seconds(0.5 * seconds * count));
    const TelemetrySample sample = telemetry_->sample();
    stream_.wait_sync();
    return sample;
  }

  void time(const Enqueue& enqueue, double flops, KernelBenchRow& row) const {
    const int count = burst_length(enqueue);
    const Enqueue multiply = [&](cudaStream_t stream) { gemm_->enqueue(stream); };
    const int gemm_count = gemm_ ? burst_length(multiply) : 0;
    std::vector<double> seconds, gemm_rates, shares;
    TelemetrySample seen;
    for (std::int32_t round = 0; round < options_.rounds; ++round) {
      seconds.push_back(burst_seconds(enqueue, count));
      if (gemm_) {
        gemm_rates.push_back(Gemm::kFlops / burst_seconds(multiply, gemm_count));
        shares.push_back(flops / seconds.back() / gemm_rates.back());
      }
      if (round == options_.rounds / 2) seen = sample(enqueue, count, seconds.back());
    }
    row.seconds = median(seconds);
    row.flops_per_second = flops / row.seconds;
    row.sm_clock_mhz = seen.sm_clock_mhz;
    row.power_watts = seen.power_watts;
    if (!gemm_) return;
    row.gemm_flops_per_second = median(gemm_rates);
    row.gemm_share = median(shares);
  }

  const KernelBenchOptions& options_;
  std::unique_ptr<Gemm> gemm_;
  std::unique_ptr<Telemetry> telemetry_;
  Stream stream_;
};

}  // namespace

KernelBenchReport run_kernel_bench(const KernelBenchOptions& options,
                                   const std::function<void(const std::string&)>& tell) {
  check_machine(options);
  const DeviceScope scope(options.device);
  KernelBenchReport report{.gpu = device_name(options.device)};
  const Bench bench(options, tell);
  for (const std::int32_t rows : options.lengths) {
    const BenchTensors tensors(options, rows);
    for (const std::string& name : options.masks) {
      tell(name + ", " + draw::grouped(rows) + " rows");
      const Mask mask = bench_mask(name, rows);
      report.rows.push_back(bench.run_forward(name, mask, tensors));
      if (options.has_backward) report.rows.push_back(bench.run_backward(name, mask, tensors));
    }
  }
  return report;
}

}  // namespace magi::cli
