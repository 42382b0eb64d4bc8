// SPDX-License-Identifier: Apache-2.0
// What it gives to cut tiles of long rows into pieces: split_bench --out FILE writes rows {name,
// value, unit}. bfloat16, head dim 128, full masks; calls without and with pieces in turn.
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/stream.hpp"
#include "cuda/timing.hpp"
#include "gpu/bench_tensors.hpp"
#include "gpu/graph_time.hpp"
#include "magi/attention_cuda.hpp"

namespace magi::bench {
namespace {

constexpr int kRounds = 21;
constexpr int kBurst = 5;

struct Case {
  std::string name;
  std::int32_t rows_q;
  std::int32_t rows_k;
  std::int32_t heads_q;
  std::int32_t heads_kv;
};

struct Tensors {
  explicit Tensors(const Case& bench)
      : q(random_values(std::int64_t{bench.rows_q} * bench.heads_q * 128, 1)),
        k(random_values(std::int64_t{bench.rows_k} * bench.heads_kv * 128, 2)),
        v(random_values(std::int64_t{bench.rows_k} * bench.heads_kv * 128, 3)),
        out(q.size_bytes()),
        lse(q.size_bytes() / 64),
        slices{band_slice({0, bench.rows_q}, {0, bench.rows_k}, MaskType::Full)} {
    args.q = device_view(q, DType::BFloat16, {bench.rows_q, bench.heads_q, 128});
    args.k = device_view(k, DType::BFloat16, {bench.rows_k, bench.heads_kv, 128});
    args.v = device_view(v, DType::BFloat16, {bench.rows_k, bench.heads_kv, 128});
    args.out = device_view(out, DType::BFloat16, {bench.rows_q, bench.heads_q, 128});
    args.lse = device_view(lse, DType::Float32, {bench.rows_q, bench.heads_q});
    args.slices = slices;
  }
  DeviceBuffer q, k, v, out, lse;
  std::vector<BandSlice> slices;
  ForwardArgs args;
};

double time_burst_sync(const Tensors& tensors, const ForwardWork& work, const Stream& stream) {
  const Event begin;
  const Event end;
  attention_forward_cuda(tensors.args, work, stream.handle());
  begin.record(stream.handle());
  for (int i = 0; i < kBurst; ++i) {
    attention_forward_cuda(tensors.args, work, stream.handle());
  }
  end.record(stream.handle());
  return end.seconds_since_sync(begin) / kBurst;
}

std::string row(const std::string& name, double value, const char* unit) {
  char text[160];
  std::snprintf(text, sizeof text, R"({"name": "%s", "value": %.4g, "unit": "%s"})", name.c_str(),
                value, unit);
  return text;
}

std::string time_case(const Case& bench) {
  const Tensors tensors(bench);
  const Stream stream;
  const ForwardWork whole(tensors.args, {.max_pieces = 1});
  const ForwardWork pieces(tensors.args);
  std::vector<double> times[2];
  for (int round = 0; round < kRounds; ++round) {
    times[0].push_back(time_burst_sync(tensors, whole, stream));
    times[1].push_back(time_burst_sync(tensors, pieces, stream));
  }
  const std::string name = "forward.long_rows." + bench.name;
  return row(name + ".whole", 1e6 * median(times[0]), "us") + ",\n" +
         row(name + ".in_pieces", 1e6 * median(times[1]), "us") + ",\n" +
         row(name + ".pieces", pieces.num_pieces(), "pieces");
}

std::string run() {
  const std::vector<Case> cases = {{"64x128k.64_8", 64, 131072, 64, 8},
                                   {"1x8k.64_8", 1, 8192, 64, 8},
                                   {"64x512k.8_1", 64, 524288, 8, 1},
                                   {"8kx8k.1_1", 8192, 8192, 1, 1}};
  std::string rows;
  for (const Case& bench : cases) rows += (rows.empty() ? "" : ",\n") + time_case(bench);
  return "[" + rows + "]\n";
}

}  // namespace
}  // namespace magi::bench

int main(int argc, char** argv) {
  if (argc != 3 || std::string_view(argv[1]) != "--out") {
    std::fprintf(stderr, "usage: split_bench --out FILE\n");
    return 2;
  }
  try {
    std::ofstream(argv[2]) << magi::bench::run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "split_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
