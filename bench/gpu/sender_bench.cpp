// SPDX-License-Identifier: Apache-2.0
// Ways for rows of K and V to reach the memory of a peer, on two GPUs that send to each other,
// alone and beside attention: sender_bench --out FILE [--rounds N] writes rows {name, value, unit}
// and prints a table. bfloat16, 8 kv heads of 128. Every sender's rows are compared once.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.hpp"
#include "gpu/sender_side.hpp"

namespace magi::bench {
namespace {

struct Variant {
  std::string name;
  Sending sending;
};

std::vector<Variant> variants() {
  std::vector<Variant> all{{"none", {Sender::None}}};
  for (const int blocks : {4, 8, 16, 24, 48}) {
    all.push_back({"push." + std::to_string(blocks), {Sender::Push, blocks}});
  }
  all.push_back({"copies.rows", {Sender::Copies}});
  all.push_back({"copies.tensors", {Sender::TensorCopies}});
  all.push_back({"copies.batch", {Sender::CopyBatch}});
  all.push_back({"warps.1", {Sender::Warps, 1}});
  all.push_back({"warps.2", {Sender::Warps, 2}});
  return all;
}

std::vector<RunsOfRows> patterns() {
  std::vector<RunsOfRows> all;
  for (const std::int32_t mib : {1, 4, 16, 64}) {
    const std::int32_t rows = mib * (1 << 20) / (2 * kRowBytes);
    for (const std::int32_t run : {rows, 2048, 512, 128}) {
      if (run < rows || run == rows) all.push_back({rows, run});
    }
  }
  return all;
}

std::string name_of(const RunsOfRows& runs) {
  const std::int64_t mib = std::int64_t{runs.rows} * 2 * kRowBytes >> 20;
  const bool is_whole = runs.rows == runs.run;
  return std::to_string(mib) + "mib." + (is_whole ? "whole" : "runs_" + std::to_string(runs.run));
}

/// Medians of the slower GPU. [us]
struct Measured {
  double sent = 0;    ///< until the rows have been sent, with nothing beside
  double cost = 0;    ///< what attention beside it takes longer
  double beside = 0;  ///< until the rows have been sent, beside attention, where that is known
  double host = 0;    ///< of the thread that enqueues
};

class Bench {
 public:
  explicit Bench(int rounds) : rounds_(rounds) {
    sides_[0].connect(sides_[1]);
    sides_[1].connect(sides_[0]);
  }

  std::vector<Measured> measure(const std::vector<Variant>& all, const RunsOfRows& runs) {
    for (Side& side : sides_) side.set_runs(runs);
    for (const Variant& variant : all) check(variant, runs);
    std::vector<std::array<std::vector<double>, 4>> samples(all.size());
    std::vector<std::size_t> order(all.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    for (int round = 0; round < rounds_; ++round) {
      for (std::size_t i = order.size(); i > 1; --i) {
        const int last = static_cast<int>(i) - 1;
        std::swap(order[i - 1], order[static_cast<std::size_t>(random_.between(0, last))]);
      }
      for (const std::size_t v : order) {
        const Times alone = run({all[v].sending, false});
        const Times beside = run({all[v].sending, true});
        const double values[] = {alone.sent, beside.attention, beside.sent, alone.host};
        for (std::size_t i = 0; i < 4; ++i) samples[v][i].push_back(values[i]);
      }
    }
    std::vector<Measured> measured;
    const double attention = median(samples[0][1]);
    for (auto& [sent, with, beside, host] : samples) {
      measured.push_back({median(sent), median(with) - attention, median(beside), median(host)});
    }
    measured.front().cost = attention;
    return measured;
  }

 private:
  static double median(std::vector<double> values) {
    std::ranges::sort(values);
    return 1e6 * values[values.size() / 2];
  }

  Times run(const Job& job) {
    gate_.close();
    for (Side& side : sides_) side.enqueue(job, gate_.word());
    gate_.open();
    const Times first = sides_[0].times_sync();
    const Times second = sides_[1].times_sync();
    return {.sent = std::max(first.sent, second.sent),
            .attention = std::max(first.attention, second.attention),
            .host = std::max(first.host, second.host)};
  }

  void check(const Variant& variant, const RunsOfRows& runs) {
    if (variant.sending.sender == Sender::None) return;
    for (const bool is_beside : {false, true}) {
      for (const Side& side : sides_) side.clear_sync();
      run({variant.sending, is_beside});
      for (const Side& side : sides_) {
        side.check_sync(variant.name + ", " + name_of(runs), is_flat(variant.sending.sender));
      }
    }
  }

  int rounds_;
  RandomStream random_{7};
  Gate gate_;
  std::array<Side, 2> sides_{Side(0), Side(1)};
};

std::string row(const std::string& name, double value) {
  char text[160];
  std::snprintf(text, sizeof text, R"({"name": "%s", "value": %.4g, "unit": "us"})", name.c_str(),
                value);
  return text;
}

std::string run(int rounds) {
  Bench bench(rounds);
  const std::vector<Variant> all = variants();
  std::string rows;
  for (const RunsOfRows& runs : patterns()) {
    const std::vector<Measured> measured = bench.measure(all, runs);
    const std::string pattern = name_of(runs);
    std::printf("%s: attention alone %.1f us\n", pattern.c_str(), measured.front().cost);
    for (std::size_t v = 1; v < all.size(); ++v) {
      const Measured& m = measured[v];
      const double bytes = static_cast<double>(runs.rows) * 2 * kRowBytes;
      std::printf(
          "  %-15s sent %7.1f us %4.0f GB/s, attention +%6.1f us, sent beside %7.1f, host %6.1f\n",
          all[v].name.c_str(), m.sent, bytes / m.sent * 1e-3, m.cost, m.beside, m.host);
      const std::string name = "senders." + pattern + "." + all[v].name;
      for (const auto& [what, value] : {std::pair{".sent", m.sent}, {".cost", m.cost}}) {
        rows += (rows.empty() ? "" : ",\n") + row(name + what, value);
      }
      if (m.host > 100) rows += ",\n" + row(name + ".host", m.host);
    }
    std::fflush(stdout);
  }
  return "[" + rows + "]\n";
}

}  // namespace
}  // namespace magi::bench

int main(int argc, char** argv) {
  std::string out;
  int rounds = 15;
  bool is_understood = argc % 2 == 1;
  for (int i = 1; is_understood && i < argc; i += 2) {
    const std::string_view name = argv[i];
    if (name == "--out") out = argv[i + 1];
    if (name == "--rounds") rounds = std::atoi(argv[i + 1]);
    is_understood = name == "--out" || name == "--rounds";
  }
  if (!is_understood || out.empty() || rounds < 1) {
    std::fprintf(stderr, "usage: sender_bench --out FILE [--rounds N]\n");
    return 2;
  }
  if (magi::device_count() < 2) {
    std::fprintf(stderr, "sender_bench: fewer than two GPUs: nothing measured\n");
    return 3;
  }
  try {
    std::ofstream(out) << magi::bench::run(rounds);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sender_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
