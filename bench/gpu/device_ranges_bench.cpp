// SPDX-License-Identifier: Apache-2.0
// What it costs that slices are in device memory: calls whose lists the device makes beside the
// same calls with cached host lists, in replayed graphs, and the lists alone.
// device_ranges_bench --masks FILE --out FILE, where bench/attention_masks.py writes the masks.
// bfloat16, 64:8 heads, head dim 128; rows {name, value, unit}. A ratio is the median over rounds
// of the host list's time over the device list's, in the fast mode of the backward; rows of
// .deterministic have it for the other.
#include <algorithm>
#include <array>
#include <exception>
#include <fstream>
#include <functional>
#include <iostream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/check.hpp"
#include "cuda/stream.hpp"
#include "cuda/timing.hpp"
#include "gpu/bench_tensors.hpp"
#include "gpu/graph_time.hpp"
#include "kernels/schedule/device/device_backward_list.hpp"
#include "kernels/schedule/device/device_list.hpp"
#include "magi/attention_cuda.hpp"

namespace magi::bench {
namespace {

constexpr std::int32_t kHeads = 64;
constexpr std::int32_t kKvHeads = 8;
constexpr std::int32_t kDim = 128;
constexpr int kMostRounds = 25;
constexpr int kLeastRounds = 5;
constexpr double kMostSeconds = 0.4;  ///< of more rounds than the least
constexpr int kBurst = 4;             ///< calls of a graph, of up to kBurstRows rows
constexpr std::int32_t kBurstRows = 1 << 14;
constexpr std::array kMasks = {"full",   "causal",      "varlen_full",    "varlen_causal",
                               "window", "prefix_tree", "share_question", "global_window"};
using Enqueue = std::function<void(cudaStream_t)>;

/// A graph of some calls in a row.
class Replay {
 public:
  Replay(const Enqueue& enqueue, const Stream& stream, int burst = kBurst)
      : stream_(stream), burst_(burst) {
    cudaGraph_t graph = nullptr;
    cuda_check(cudaStreamBeginCapture(stream.handle(), cudaStreamCaptureModeThreadLocal),
               "cudaStreamBeginCapture");
    for (int i = 0; i < burst; ++i) enqueue(stream.handle());
    cuda_check(cudaStreamEndCapture(stream.handle(), &graph), "cudaStreamEndCapture");
    const cudaError_t status = cudaGraphInstantiate(&executable_, graph, 0);
    static_cast<void>(cudaGraphDestroy(graph));
    cuda_check(status, "cudaGraphInstantiate");
    static_cast<void>(seconds_sync());
  }
  ~Replay() { static_cast<void>(cudaGraphExecDestroy(executable_)); }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  /// Of one call.
  double seconds_sync() const {
    const Event begin;
    const Event end;
    begin.record(stream_.handle());
    cuda_check(cudaGraphLaunch(executable_, stream_.handle()), "cudaGraphLaunch");
    end.record(stream_.handle());
    return end.seconds_since_sync(begin) / burst_;
  }

 private:
  const Stream& stream_;
  const int burst_;
  cudaGraphExec_t executable_ = nullptr;
};

struct Row {
  std::string name;
  double value = 0;
  std::string unit;
};

/// The numbers of MaskType and the ranges of slices, on the device.
class SlicesOnDevice {
 public:
  explicit SlicesOnDevice(const std::vector<BandSlice>& bands)
      : count_(static_cast<std::int32_t>(bands.size())) {
    std::vector<std::int32_t> q;
    std::vector<std::int32_t> k;
    std::vector<std::int32_t> types;
    for (const BandSlice& band : bands) {
      q.insert(q.end(), {band.q0, band.q1});
      k.insert(k.end(), {band.k0, band.k1});
      types.push_back((band.d_max == band.k1 - band.q1 ? 1 : 0) +
                      (band.d_min == band.k0 - band.q0 ? 2 : 0));
      const bool is_open_above = band.d_max >= band.k1 - 1 - band.q0;
      const bool is_open_below = band.d_min <= band.k0 - (band.q1 - 1);
      if ((!is_open_above && (types.back() & 1) == 0) ||
          (!is_open_below && (types.back() & 2) == 0)) {
        throw std::runtime_error("a slice of the mask has no type");
      }
    }
    q_ = to_device_sync<std::int32_t>(q);
    k_ = to_device_sync<std::int32_t>(k);
    types_ = to_device_sync<std::int32_t>(types);
  }
  SliceArrays arrays() const {
    return {static_cast<const std::int32_t*>(q_.data()),
            static_cast<const std::int32_t*>(k_.data()),
            static_cast<const std::int32_t*>(types_.data()), count_};
  }
  DeviceSlices view() const {
    return {device_view(q_, DType::Int32, {count_, 2}), device_view(k_, DType::Int32, {count_, 2}),
            device_view(types_, DType::Int32, {count_})};
  }

 private:
  std::int32_t count_;
  DeviceBuffer q_;
  DeviceBuffer k_;
  DeviceBuffer types_;
};

/// The tensors of calls of so many rows; `slices` of their arguments are a mask's.
struct Tensors {
  explicit Tensors(std::int64_t num_rows)
      : rows(num_rows),
        q(random_values(rows * kHeads * kDim, 1)),
        k(random_values(rows * kKvHeads * kDim, 2)),
        v(random_values(rows * kKvHeads * kDim, 3)),
        dout(random_values(rows * kHeads * kDim, 4)),
        out(q.size_bytes()),
        dq(q.size_bytes()),
        dk(k.size_bytes()),
        dv(k.size_bytes()),
        lse(static_cast<std::size_t>(rows * kHeads) * sizeof(float)) {
    const auto of = [&](const DeviceBuffer& buffer, std::int64_t heads) {
      return device_view(buffer, DType::BFloat16, {rows, heads, kDim});
    };
    forward.q = of(q, kHeads);
    forward.k = of(k, kKvHeads);
    forward.v = of(v, kKvHeads);
    forward.out = of(out, kHeads);
    forward.lse = device_view(lse, DType::Float32, {rows, kHeads});
    backward.q = forward.q;
    backward.k = forward.k;
    backward.v = forward.v;
    backward.out = forward.out;
    backward.lse = forward.lse;
    backward.dout = of(dout, kHeads);
    backward.dq = of(dq, kHeads);
    backward.dk = of(dk, kKvHeads);
    backward.dv = of(dv, kKvHeads);
  }
  int burst() const { return rows <= kBurstRows ? kBurst : 1; }

  std::int64_t rows;
  DeviceBuffer q, k, v, dout, out, dq, dk, dv, lse;
  ForwardArgs forward;
  BackwardArgs backward;
};

struct Memory {
  explicit Memory(std::int64_t bytes) : buffer(static_cast<std::size_t>(bytes)) {}
  DeviceWorkspace workspace() const {
    return {buffer.data(), static_cast<std::int64_t>(buffer.size_bytes())};
  }
  DeviceBuffer buffer;
};

/// Times calls in turn, each round from another one on. Returns each call's seconds by round.
std::vector<std::vector<double>> alternate(const std::vector<const Replay*>& calls) {
  std::vector<std::vector<double>> seconds(calls.size());
  double sum = 0.0;
  for (std::size_t round = 0; round < kLeastRounds || (round < kMostRounds && sum < kMostSeconds);
       ++round) {
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const std::size_t turn = (round + i) % calls.size();
      seconds[turn].push_back(calls[turn]->seconds_sync());
      sum += seconds[turn].back();
    }
  }
  return seconds;
}

double ratio(const std::vector<double>& host, const std::vector<double>& device) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < host.size(); ++i) ratios.push_back(host[i] / device[i]);
  return median(ratios);
}

void time_forward(const std::string& mask, const Tensors& tensors, const SlicesOnDevice& slices,
                  const Stream& stream, std::vector<Row>& rows) {
  const ForwardWork work(tensors.forward);
  const Memory memory(forward_workspace_bytes(tensors.forward, slices.arrays().count));
  const Replay host([&](cudaStream_t on) { attention_forward_cuda(tensors.forward, work, on); },
                    stream, tensors.burst());
  const Replay device(
      [&](cudaStream_t on) {
        attention_forward_cuda(tensors.forward, slices.view(), memory.workspace(), {}, on);
      },
      stream, tensors.burst());
  const auto seconds = alternate({&host, &device});
  const std::string name = "forward.device_ranges." + mask;
  rows.push_back({name, ratio(seconds[0], seconds[1]), "ratio"});
  rows.push_back({name + ".host_list_us", 1e6 * median(seconds[0]), "us"});
  rows.push_back({name + ".device_list_us", 1e6 * median(seconds[1]), "us"});
}

/// Behind time_forward, which leaves out and lse.
void time_backward(const std::string& mask, const Tensors& tensors, const SlicesOnDevice& slices,
                   const Stream& stream, std::vector<Row>& rows) {
  const BackwardWork ordered(tensors.backward);
  const BackwardWork fast(tensors.backward, {.is_deterministic = false});
  const BackwardWork plain(tensors.backward, {.is_deterministic = false, .is_plain = true});
  const Memory host_memory(
      std::max({ordered.workspace_bytes(), fast.workspace_bytes(), plain.workspace_bytes()}));
  const Memory memory(backward_workspace_bytes(tensors.backward, slices.arrays().count));
  const auto with_device_list = [&](bool is_deterministic) {
    return [&, is_deterministic](cudaStream_t on) {
      attention_backward_cuda(tensors.backward, slices.view(), memory.workspace(),
                              {.is_deterministic = is_deterministic}, on);
    };
  };
  const auto with_host_list = [&](const BackwardWork& work) {
    return [&](cudaStream_t on) {
      attention_backward_cuda(tensors.backward, work, host_memory.workspace(), on);
    };
  };
  const Replay host(with_host_list(ordered), stream, tensors.burst());
  const Replay host_fast(with_host_list(fast), stream, tensors.burst());
  const Replay host_plain(with_host_list(plain), stream, tensors.burst());
  const Replay device(with_device_list(true), stream, tensors.burst());
  const Replay device_fast(with_device_list(false), stream, tensors.burst());
  const auto seconds = alternate({&host, &host_fast, &device, &device_fast, &host_plain});
  const std::string name = "backward.device_ranges." + mask;
  rows.push_back({name, ratio(seconds[1], seconds[3]), "ratio"});
  rows.push_back({name + ".deterministic", ratio(seconds[0], seconds[2]), "ratio"});
  rows.push_back({name + ".host_list_us", 1e6 * median(seconds[1]), "us"});
  rows.push_back({name + ".plain_list_us", 1e6 * median(seconds[4]), "us"});
  rows.push_back({name + ".device_list_us", 1e6 * median(seconds[3]), "us"});
}

/// Packed causal documents of random lengths.
std::vector<BandSlice> documents(std::int32_t rows, std::int32_t count) {
  RandomStream random(1);
  std::vector<std::int32_t> cuts{0, rows};
  while (std::ssize(cuts) <= count) {
    const std::int32_t cut = random.between(1, rows - 1);
    const auto place = std::lower_bound(cuts.begin(), cuts.end(), cut);
    if (*place != cut) cuts.insert(place, cut);
  }
  std::vector<BandSlice> slices;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    const Range rows_of{cuts[i], cuts[i + 1]};
    slices.push_back(band_slice(rows_of, rows_of, MaskType::Causal));
  }
  return slices;
}

/// Both lists of one mask, one after the other, and each alone.
void time_lists(const std::string& mask, std::int32_t num_rows, const std::vector<BandSlice>& bands,
                const Stream& stream, std::vector<Row>& rows) {
  const SlicesOnDevice slices(bands);
  DeviceListShape forward;
  forward.problem = {
      .rows_q = num_rows, .rows_k = num_rows, .heads_q = kHeads, .heads_kv = kKvHeads};
  forward.num_slices = slices.arrays().count;
  forward.packed_heads = device_packed_heads(forward.problem, forward.tile);
  forward.record_capacity = default_record_capacity(forward);
  DeviceBackwardShape backward;
  backward.problem = {.rows_q = num_rows,
                      .rows_k = num_rows,
                      .heads_q = kHeads,
                      .heads_kv = kKvHeads,
                      .num_ctas = 132};
  backward.num_slices = slices.arrays().count;
  backward.packed_heads = plain_packed_heads(backward.problem, backward.num_slices);
  backward.record_capacity = default_record_capacity(backward);
  const DeviceListLayout forward_layout = device_list_layout(forward);
  const DeviceBackwardLayout backward_layout = device_backward_layout(backward);
  const DeviceBuffer forward_memory(forward_layout.size_bytes);
  const DeviceBuffer backward_memory(backward_layout.size_bytes);
  const Enqueue make_forward = [&](cudaStream_t on) {
    build_device_list(forward, forward_layout, slices.arrays(), forward_memory.data(), on);
  };
  const Enqueue make_backward = [&](cudaStream_t on) {
    build_device_backward_list(backward, backward_layout, slices.arrays(), backward_memory.data(),
                               on);
  };
  const Replay forward_list(make_forward, stream);
  const Replay backward_list(make_backward, stream);
  const Replay both(
      [&](cudaStream_t on) {
        make_forward(on);
        make_backward(on);
      },
      stream);
  const auto seconds = alternate({&both, &forward_list, &backward_list});
  const std::string name = mask.empty() ? "list.device" : "list.device." + mask;
  rows.push_back({name + ".us", 1e6 * median(seconds[0]), "us"});
  rows.push_back({name + ".forward_us", 1e6 * median(seconds[1]), "us"});
  rows.push_back({name + ".backward_us", 1e6 * median(seconds[2]), "us"});
}

/// Adds the least ratio of a direction over the masks and sizes that the record has, once all of
/// them have run.
void add_worst(const std::string& direction, std::vector<Row>& rows) {
  double worst = std::numeric_limits<double>::infinity();
  for (const char* mask : kMasks) {
    for (const char* size : {".8k", ".32k"}) {
      const std::string name = direction + ".device_ranges." + mask + size;
      const auto found = std::ranges::find(rows, name, &Row::name);
      if (found == rows.end()) return;
      worst = std::min(worst, found->value);
    }
  }
  rows.push_back({"device_ranges.worst." + direction, worst, "ratio"});
}

void write_rows(const std::string& file, std::vector<Row> rows) {
  for (const char* direction : {"forward", "backward"}) add_worst(direction, rows);
  auto json = nlohmann::json::array();
  for (const Row& row : rows) {
    json.push_back({{"name", row.name}, {"value", row.value}, {"unit", row.unit}});
  }
  std::ofstream(file) << json.dump(1) << '\n';
}

void run(const std::string& masks_file, const std::string& out_file) {
  std::ifstream file(masks_file);
  if (!file) throw std::runtime_error("cannot read " + masks_file);
  const auto masks = nlohmann::json::parse(file);
  const Stream stream;
  std::vector<Row> rows;
  time_lists("", 1 << 16, documents(1 << 16, 4096), stream, rows);
  std::map<std::int32_t, Tensors> tensors_of;  // rows
  for (const auto& [name, mask] : masks.items()) {
    std::vector<BandSlice> bands;
    for (const auto& s : mask.at("slices").get<std::vector<std::array<std::int32_t, 6>>>()) {
      bands.push_back({s[0], s[1], s[2], s[3], s[4], s[5]});
    }
    const auto num_rows = mask.at("rows").get<std::int32_t>();
    time_lists(name, num_rows, bands, stream, rows);
    Tensors& tensors = tensors_of.try_emplace(num_rows, num_rows).first->second;
    tensors.forward.slices = tensors.backward.slices = bands;
    const SlicesOnDevice slices(bands);
    time_forward(name, tensors, slices, stream, rows);
    time_backward(name, tensors, slices, stream, rows);
    write_rows(out_file, rows);
  }
}

}  // namespace
}  // namespace magi::bench

int main(int argc, char** argv) {
  if (argc != 5 || std::string_view(argv[1]) != "--masks" || std::string_view(argv[3]) != "--out") {
    std::cerr << "usage: device_ranges_bench --masks FILE --out FILE\n";
    return 2;
  }
  try {
    magi::bench::run(argv[2], argv[4]);
  } catch (const std::exception& error) {
    std::cerr << "device_ranges_bench: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
