// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/document_bench.hpp"
#include "kernels/cpu/attention.hpp"

// Speed of attention on one core: packed causal documents of 8k tokens, head dim 64, as many kv
// heads as query heads (no reuse between heads). FLOPs are 4 * area * heads_q * dim forward, 2.5
// times that backward. Time is that of the core, so that other processes do not count; least of
// the repeats, mean over draws.
// cpu_bench [--out FILE] [--draws bench/data/document_draws.json]
namespace {

using magi::DType;
using magi::Mask;
using magi::TensorView;
using magi::bench::packed_causal;

constexpr std::int64_t kHeads = 4;
constexpr std::int64_t kDim = 64;

/// Seconds that the calling thread spent on a core.
double core_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <typename Run>
double least_seconds(int repeats, const Run& run) {
  run();
  double least = 1e30;
  for (int i = 0; i < repeats; ++i) {
    const double start = core_seconds();
    run();
    least = std::min(least, core_seconds() - start);
  }
  return least;
}

/// All tensors of one problem, filled with smooth values of unit size.
template <typename Real>
struct Problem {
  Mask mask;
  std::vector<std::vector<Real>> arrays;

  explicit Problem(Mask packed) : mask(std::move(packed)) { arrays.reserve(16); }

  DType dtype() const { return sizeof(Real) == 8 ? DType::Float64 : DType::Float32; }
  TensorView tensor() {
    const std::int64_t rows = mask.rows_q;
    return magi::contiguous_view(add(rows * kHeads * kDim), dtype(), {rows, kHeads, kDim});
  }
  TensorView row_tensor() {
    const std::int64_t rows = mask.rows_q;
    return magi::contiguous_view(add(rows * kHeads), dtype(), {rows, kHeads});
  }

 private:
  Real* add(std::int64_t count) {
    std::vector<Real>& values = arrays.emplace_back(static_cast<std::size_t>(count));
    const double step = 0.37 + 0.01 * static_cast<double>(arrays.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<Real>(1.4 * std::sin(step * static_cast<double>(i)));
    }
    return values.data();
  }
};

struct Speed {
  double forward = 0;   ///< GFLOP/s
  double backward = 0;  ///< GFLOP/s
};

template <typename Real>
Speed measure(const Mask& mask, int repeats, magi::cpu::Isa isa) {
  Problem<Real> problem(mask);
  const TensorView q = problem.tensor(), k = problem.tensor(), v = problem.tensor();
  const TensorView out = problem.tensor(), lse = problem.row_tensor();
  const magi::ForwardArgs forward{
      .q = q, .k = k, .v = v, .slices = mask.slices, .out = out, .lse = lse};
  const magi::BackwardArgs backward{.q = q,
                                    .k = k,
                                    .v = v,
                                    .slices = mask.slices,
                                    .out = out,
                                    .lse = lse,
                                    .dout = problem.tensor(),
                                    .dq = problem.tensor(),
                                    .dk = problem.tensor(),
                                    .dv = problem.tensor()};
  const double gflop = 4e-9 * static_cast<double>(area(mask)) * kHeads * kDim;
  const double forward_time =
      least_seconds(repeats, [&] { magi::cpu::attention_forward(forward, isa); });
  const double backward_time =
      least_seconds(repeats, [&] { magi::cpu::attention_backward(backward, isa); });
  return {gflop / forward_time, 2.5 * gflop / backward_time};
}

template <typename Real>
Speed mean_speed(const nlohmann::json& draws, std::size_t num_draws, int repeats,
                 magi::cpu::Isa isa = magi::cpu::Isa::Best) {
  Speed mean;
  for (std::size_t draw = 0; draw < num_draws; ++draw) {
    const Mask mask = packed_causal(draws.at(draw).get<std::vector<std::int32_t>>());
    const Speed speed = measure<Real>(mask, repeats, isa);
    mean.forward += speed.forward / static_cast<double>(num_draws);
    mean.backward += speed.backward / static_cast<double>(num_draws);
  }
  return mean;
}

nlohmann::json run(const magi::bench::Options& options) {
  const auto draws = magi::bench::read_draws(options).at("8192");
  magi::cpu::set_num_threads(1);
  auto rows = nlohmann::json::array();
  const auto add = [&](const char* name, double gflops) {
    rows.push_back({{"name", name}, {"value", gflops}, {"unit", "GFLOP/s"}});
  };
  const Speed single = mean_speed<float>(draws, 3, 5);
  const Speed twofold = mean_speed<double>(draws, 1, 4);
  add("cpu.forward.gflops", single.forward);
  add("cpu.backward.gflops", single.backward);
  add("cpu.forward.f64.gflops", twofold.forward);
  add("cpu.backward.f64.gflops", twofold.backward);
  add("cpu.forward.portable.gflops",
      mean_speed<float>(draws, 1, 3, magi::cpu::Isa::Portable).forward);
  return rows;
}

}  // namespace

int main(int argc, char** argv) { return magi::bench::run_bench("cpu_bench", argc, argv, run); }
