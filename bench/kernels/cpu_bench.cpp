// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <ctime>
#include <exception>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

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

constexpr std::int64_t kHeads = 4;
constexpr std::int64_t kDim = 64;

Mask packed_causal(const std::vector<std::int32_t>& lengths) {
  Mask mask;
  for (const std::int32_t length : lengths) {
    const magi::Range rows{mask.rows_q, mask.rows_q + length};
    mask.slices.push_back(magi::band_slice(rows, rows, magi::MaskType::Causal));
    mask.rows_q = mask.rows_k = rows.end;
  }
  return mask;
}

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

struct Options {
  std::string out;
  std::string draws = "bench/data/document_draws.json";
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    const bool is_known = name == "--out" || name == "--draws";
    if (!is_known || i + 1 == argc) {
      throw std::runtime_error("option " + name + "; allowed: --out FILE, --draws FILE");
    }
    (name == "--out" ? options.out : options.draws) = argv[i + 1];
  }
  return options;
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

void run(const Options& options) {
  std::ifstream file(options.draws);
  if (!file) throw std::runtime_error("cannot read " + options.draws);
  const auto draws = nlohmann::json::parse(file).at("draws").at("8192");
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
  const std::string text = rows.dump(1) + "\n";
  if (options.out.empty()) {
    std::cout << text;
  } else if (!(std::ofstream(options.out) << text)) {
    throw std::runtime_error("cannot write " + options.out);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(parse(argc, argv));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "cpu_bench: " << error.what() << '\n';
    return 1;
  }
}
