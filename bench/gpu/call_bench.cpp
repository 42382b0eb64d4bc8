// SPDX-License-Identifier: Apache-2.0
// What a call costs beyond its kernel: call_bench --out FILE writes rows {name, value, unit}.
// bfloat16, 64:8 heads, head dim 128, the list cached, calls in bursts on one stream.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/check.hpp"
#include "cuda/stream.hpp"
#include "cuda/timing.hpp"
#include "gpu/bench_tensors.hpp"
#include "gpu/graph_time.hpp"
#include "magi/attention_cuda.hpp"
#include "magi/magi.h"

namespace magi::bench {
namespace {

constexpr int kRounds = 15;
constexpr int kBurst = 400;  ///< calls; the driver's queue holds about 1,000 launches
constexpr int kNodes = 40;   ///< kernels in a graph

using Enqueue = std::function<void(cudaStream_t)>;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

struct CallTimes {
  std::vector<double> host;   ///< seconds of the caller's thread per call
  std::vector<double> whole;  ///< seconds per call until all of a burst are done
};

void time_burst(const Enqueue& enqueue, const Stream& stream, CallTimes& times) {
  stream.wait_sync();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kBurst; ++i) enqueue(stream.handle());
  times.host.push_back(seconds_since(begin) / kBurst);
  stream.wait_sync();
  times.whole.push_back(seconds_since(begin) / kBurst);
}

/// A graph of kNodes kernels one after the other.
class KernelGraph {
 public:
  KernelGraph(const Enqueue& enqueue, const Stream& stream) {
    cudaGraph_t graph = nullptr;
    cuda_check(cudaStreamBeginCapture(stream.handle(), cudaStreamCaptureModeThreadLocal),
               "cudaStreamBeginCapture");
    for (int i = 0; i < kNodes; ++i) enqueue(stream.handle());
    cuda_check(cudaStreamEndCapture(stream.handle(), &graph), "cudaStreamEndCapture");
    cuda_check(cudaGraphInstantiate(&graph_, graph, 0), "cudaGraphInstantiate");
    cuda_check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  }
  ~KernelGraph() { static_cast<void>(cudaGraphExecDestroy(graph_)); }
  KernelGraph(const KernelGraph&) = delete;
  KernelGraph& operator=(const KernelGraph&) = delete;

  double seconds_per_kernel_sync(const Stream& stream) const {
    const Event begin;
    const Event end;
    begin.record(stream.handle());
    cuda_check(cudaGraphLaunch(graph_, stream.handle()), "cudaGraphLaunch");
    end.record(stream.handle());
    return end.seconds_since_sync(begin) / kNodes;
  }

 private:
  cudaGraphExec_t graph_ = nullptr;
};

struct Row {
  std::string name;
  double value = 0.0;
  std::string unit;
};

void add_rows(const std::string& name, const Enqueue& enqueue, std::vector<Row>& rows) {
  const Stream stream;
  for (int i = 0; i < 20; ++i) enqueue(stream.handle());
  stream.wait_sync();
  const KernelGraph graph(enqueue, stream);
  CallTimes times;
  std::vector<double> kernel;
  for (int i = 0; i < kRounds; ++i) {
    kernel.push_back(graph.seconds_per_kernel_sync(stream));
    time_burst(enqueue, stream, times);
  }
  rows.push_back({name + ".kernel", 1e6 * median(kernel), "us"});
  rows.push_back({name + ".host", 1e6 * median(times.host), "us"});
  rows.push_back({name + ".over_kernel", median(times.whole) / median(kernel), "ratio"});
}

Mask causal_documents(std::int32_t rows, std::int32_t count) {
  Mask mask{rows, rows, {}};
  for (std::int32_t i = 0; i < count; ++i) {
    const Range range{rows / count * i, rows / count * (i + 1)};
    mask.slices.push_back(band_slice(range, range, MaskType::Causal));
  }
  return mask;
}

struct Tensors {
  explicit Tensors(std::int64_t rows)
      : q(random_values(rows * 64 * 128, 2)),
        kv(random_values(rows * 8 * 128, 2)),
        out(static_cast<std::size_t>(rows * 64 * 128 * 2)),
        lse(static_cast<std::size_t>(rows * 64 * 4)) {
    args.q = device_view(q, DType::BFloat16, {rows, 64, 128});
    args.k = args.v = device_view(kv, DType::BFloat16, {rows, 8, 128});
    args.out = device_view(out, DType::BFloat16, {rows, 64, 128});
    args.lse = device_view(lse, DType::Float32, {rows, 64});
  }
  DeviceBuffer q, kv, out, lse;
  ForwardArgs args;
};

magi_tensor to_tensor(const TensorView& view) {
  magi_tensor tensor{.struct_size = sizeof(tensor),
                     .data = view.data,
                     .dtype = static_cast<std::int32_t>(view.dtype),
                     .device = view.device,
                     .rank = view.rank};
  std::copy(view.shape.begin(), view.shape.end(), tensor.shape);
  std::copy(view.stride.begin(), view.stride.end(), tensor.stride);
  return tensor;
}

void check(magi_status status) {
  if (status != MAGI_OK) throw std::runtime_error(magi_last_error_message());
}

/// The call by mask through the C ABI.
Enqueue abi_call(const ForwardArgs& args, const Mask& mask) {
  struct Call {
    magi_tensor q, k, v, out, lse;
    std::unique_ptr<magi_mask, decltype(&magi_mask_destroy)> mask{nullptr, magi_mask_destroy};
  };
  const auto call =
      std::make_shared<Call>(Call{to_tensor(args.q), to_tensor(args.k), to_tensor(args.v),
                                  to_tensor(args.out), to_tensor(args.lse)});
  std::vector<std::int32_t> slices;
  for (const BandSlice& s : mask.slices) {
    slices.insert(slices.end(), {s.q0, s.q1, s.k0, s.k1, s.d_min, s.d_max});
  }
  magi_mask* handle = nullptr;
  check(magi_mask_from_slices(slices.data(), std::ssize(mask.slices), mask.rows_q, mask.rows_k,
                              &handle));
  call->mask.reset(handle);
  return [call](cudaStream_t stream) {
    const magi_attention_inputs inputs{
        .struct_size = sizeof(inputs), .q = &call->q, .k = &call->k, .v = &call->v};
    const magi_attention_result result{
        .struct_size = sizeof(result), .out = &call->out, .lse = &call->lse};
    check(magi_flex_attention_forward(call->mask.get(), &inputs, &result, stream));
  };
}

/// The must: the largest ratio at 1k rows.
Row worst_at_1k(const std::vector<Row>& rows) {
  Row worst{"forward.call_over_kernel.1k", 0.0, "ratio"};
  for (const Row& row : rows) {
    if (row.unit == "ratio" && row.name.find(".1k.") != std::string::npos) {
      worst.value = std::max(worst.value, row.value);
    }
  }
  return worst;
}

std::vector<Row> run() {
  std::vector<Row> rows;
  for (const std::int32_t length : {1024, 4096}) {
    for (const std::int32_t documents : {1, 8}) {
      const Mask mask = causal_documents(length, documents);
      Tensors tensors(length);
      tensors.args.slices = mask.slices;
      const std::string suffix =
          std::to_string(length / 1024) + "k." + std::to_string(documents) + "_documents";
      const auto work = std::make_shared<const ForwardWork>(tensors.args);
      add_rows(
          "forward.cpp_call." + suffix,
          [&](cudaStream_t stream) { attention_forward_cuda(tensors.args, *work, stream); }, rows);
      add_rows("forward.abi_call." + suffix, abi_call(tensors.args, mask), rows);
    }
  }
  rows.push_back(worst_at_1k(rows));
  return rows;
}

void write_rows(const std::vector<Row>& rows, const std::string& path) {
  std::ofstream file(path);
  file << "[\n";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::printf("%-44s %9.3f %s\n", rows[i].name.c_str(), rows[i].value, rows[i].unit.c_str());
    file << " {\"name\": \"" << rows[i].name << "\", \"value\": " << rows[i].value
         << ", \"unit\": \"" << rows[i].unit << "\"}" << (i + 1 < rows.size() ? ",\n" : "\n");
  }
  file << "]\n";
}

}  // namespace
}  // namespace magi::bench

int main(int argc, char** argv) {
  if (argc != 3 || std::string_view(argv[1]) != "--out") {
    std::fprintf(stderr, "usage: call_bench --out FILE\n");
    return 2;
  }
  try {
    magi::bench::write_rows(magi::bench::run(), argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "call_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
