// SPDX-License-Identifier: Apache-2.0
// Times the forward's work list made on the device, and whole calls with it,
// in replayed graphs: device_list_bench prints one line of JSON per case. bfloat16, 64:8 heads,
// head dim 128, causal.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cuda/check.hpp"
#include "cuda/memory.hpp"
#include "gpu/bench_tensors.hpp"
#include "gpu/graph_time.hpp"
#include "kernels/schedule/device/device_list.hpp"
#include "magi/attention_cuda.hpp"
#include "mask/random_mask.hpp"

namespace magi::bench {
namespace {

constexpr int kRepeats = 25;

struct Case {
  std::string name;
  std::int32_t rows = 0;
  std::vector<std::int32_t> ranges;  ///< [slices, 2], of q and of k
  bool is_attending = true;          ///< time whole calls too
};

Case documents(std::int32_t rows, std::int32_t count) {
  Case result{"documents." + std::to_string(count) + "." + std::to_string(rows), rows, {}};
  for (std::int32_t i = 0; i < count; ++i) {
    const std::int32_t begin = rows / count * i;
    result.ranges.insert(result.ranges.end(), {begin, begin + rows / count});
  }
  return result;
}

Case scattered(std::int32_t rows, std::int32_t count) {
  Case result{"scattered." + std::to_string(count) + "." + std::to_string(rows), rows, {}, false};
  RandomStream random(1);
  for (std::int32_t i = 0; i < count; ++i) {
    const std::int32_t begin = random.between(0, rows - 64);
    result.ranges.insert(result.ranges.end(), {begin, begin + random.between(1, 64)});
  }
  return result;
}

/// Microseconds the host spends in `enqueue`, the device idle before.
double time_host(const std::function<void(cudaStream_t)>& enqueue) {
  std::vector<double> times;
  for (int i = 0; i < kRepeats; ++i) {
    cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    const auto begin = std::chrono::steady_clock::now();
    enqueue(nullptr);
    const std::chrono::duration<double, std::micro> passed =
        std::chrono::steady_clock::now() - begin;
    times.push_back(passed.count());
  }
  cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  return median(times);
}

struct Slices {
  explicit Slices(const Case& bench)
      : count(static_cast<std::int32_t>(bench.ranges.size() / 2)),
        ranges(to_device_sync<std::int32_t>(bench.ranges)),
        types(to_device_sync<std::int32_t>(
            std::vector<std::int32_t>(static_cast<std::size_t>(count), 1))) {}
  DeviceSlices view() const {
    const TensorView pairs = device_view(ranges, DType::Int32, {count, 2});
    return {pairs, pairs, device_view(types, DType::Int32, {count})};
  }
  SliceArrays arrays() const {
    const auto* pairs = static_cast<const std::int32_t*>(ranges.data());
    return {pairs, pairs, static_cast<const std::int32_t*>(types.data()), count};
  }
  std::int32_t count;
  DeviceBuffer ranges;
  DeviceBuffer types;
};

std::string time_build(const Case& bench, const Slices& slices) {
  DeviceListShape shape;
  shape.problem = {.rows_q = bench.rows, .rows_k = bench.rows, .heads_q = 64, .heads_kv = 8};
  shape.num_slices = slices.count;
  shape.packed_heads = device_packed_heads(shape.problem, shape.tile);
  shape.record_capacity = default_record_capacity(shape);
  const DeviceListLayout layout = device_list_layout(shape);
  const DeviceBuffer workspace(layout.size_bytes);
  const double time = time_graph([&](cudaStream_t stream) {
    build_device_list(shape, layout, slices.arrays(), workspace.data(), stream);
  });
  const auto header = to_host_sync<DeviceListHeader>(workspace.data(), 1).front();
  char text[320];
  std::snprintf(text, sizeof text,
                "{\"us\": %.1f, \"packed_heads\": %d, \"records\": %llu, \"workspace_mb\": %.1f}",
                time, header.outcome.packed_heads,
                static_cast<unsigned long long>(header.num_records),
                1e-6 * static_cast<double>(layout.size_bytes));
  return text;
}

struct Tensors {
  explicit Tensors(std::int64_t rows)
      : q(random_values(rows * 64 * 128, 2)),
        kv(random_values(rows * 8 * 128, 2)),
        out(static_cast<std::size_t>(rows * 64 * 128 * 2)),
        lse(static_cast<std::size_t>(rows * 64 * 4)) {
    args.q = device_view(q, DType::BFloat16, {rows, 64, 128});
    args.k = device_view(kv, DType::BFloat16, {rows, 8, 128});
    args.v = args.k;
    args.out = device_view(out, DType::BFloat16, {rows, 64, 128});
    args.lse = device_view(lse, DType::Float32, {rows, 64});
  }
  DeviceBuffer q, kv, out, lse;
  ForwardArgs args;
};

std::string time_calls(const Case& bench, const Slices& slices) {
  Tensors tensors(bench.rows);
  std::vector<BandSlice> bands;
  for (std::size_t i = 0; i < bench.ranges.size(); i += 2) {
    const Range range{bench.ranges[i], bench.ranges[i + 1]};
    bands.push_back(band_slice(range, range, MaskType::Causal));
  }
  tensors.args.slices = bands;
  const ForwardWork work(tensors.args);
  const DeviceBuffer memory(
      static_cast<std::size_t>(forward_workspace_bytes(tensors.args, slices.count)));
  const DeviceWorkspace workspace{memory.data(), static_cast<std::int64_t>(memory.size_bytes())};
  const auto with_host_list = [&](cudaStream_t stream) {
    attention_forward_cuda(tensors.args, work, stream);
  };
  const auto with_device_list = [&](const DeviceListTuning& tuning) {
    return [&, tuning](cudaStream_t stream) {
      attention_forward_cuda(tensors.args, slices.view(), workspace, tuning, stream);
    };
  };
  DeviceListTuning fixed;
  fixed.forward.packed_heads = work.packed_heads();
  DeviceListTuning tight = fixed;
  tight.record_capacity = 1;
  char text[320];
  std::snprintf(text, sizeof text,
                "{\"host_list_us\": %.1f, \"device_list_us\": %.1f, \"fixed_packing_us\": %.1f, "
                "\"no_capacity_us\": %.1f, \"host_side_us\": %.1f}",
                time_graph(with_host_list), time_graph(with_device_list({})),
                time_graph(with_device_list(fixed)), time_graph(with_device_list(tight)),
                time_host(with_device_list({})));
  return text;
}

void run() {
  for (const Case& bench : {documents(32768, 32), documents(8192, 8), documents(32768, 4096),
                            scattered(1 << 20, 300000)}) {
    const Slices slices(bench);
    std::printf("{\"case\": \"%s\", \"build\": %s", bench.name.c_str(),
                time_build(bench, slices).c_str());
    if (bench.is_attending) std::printf(", \"call\": %s", time_calls(bench, slices).c_str());
    std::printf("}\n");
  }
}

}  // namespace
}  // namespace magi::bench

int main() {
  try {
    magi::bench::run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "device_list_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
