// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <fstream>
#include <iostream>
#include <map>
#include <tuple>

#include "bench/plan/batch_draws.hpp"
#include "bench/plan/batch_schemes.hpp"
#include "simulate/sweep.hpp"

// Steps of batches of 8 samples a rank on 8 to 1,024 ranks in nodes of 8, 20 on up to 64 ranks and
// fewer on more: a table on standard output, and with --out pictures of the time, FILE, and of
// bytes by link class, beside it. batch_growth [--out FILE] [--draws
// bench/data/document_draws.json]
namespace magi::bench {
namespace {

/// Of a size: what a batch takes grows with the square of its ranks.
int num_batches(std::int32_t ranks) { return std::clamp(1280 / ranks, 2, 20); }

constexpr int kSamplesPerRank = 8;

/// Means over batches that the scheme can hold.
struct Mean {
  int count = 0;
  BatchFigures sum;
};

void add(const BatchFigures& figures, Mean& mean) {
  ++mean.count;
  mean.sum.seconds += figures.seconds;
  mean.sum.node_bytes += figures.node_bytes;
  mean.sum.network_bytes += figures.network_bytes;
  mean.sum.most_rows = std::max(mean.sum.most_rows, figures.most_rows);
}

cli::SweepRow row_of(const std::string& scheme, std::int32_t ranks, const Mean& mean) {
  cli::SweepRow row{.ranks = ranks, .is_baseline = true};
  row.figures.strategy = scheme;
  row.figures.passes[0].seconds = mean.sum.seconds / mean.count;
  row.figures.passes[0].bytes = {mean.sum.node_bytes / mean.count,
                                 mean.sum.network_bytes / mean.count};
  std::cout << ranks << " ranks, " << scheme << ": " << row.figures.step_seconds()
            << " s, GB a rank " << static_cast<double>(row.figures.passes[0].bytes[0]) / 1e9 / ranks
            << " in nodes, " << static_cast<double>(row.figures.passes[0].bytes[1]) / 1e9 / ranks
            << " between, " << mean.sum.most_rows << " rows at most, " << mean.count << " batches\n"
            << std::flush;
  return row;
}

void run(const Options& options) {
  const std::vector<Bin> bins = read_bins(options);
  std::vector<cli::SweepRow> rows;
  for (std::int32_t ranks = 8; ranks <= 1024; ranks *= 2) {
    RandomStream random(static_cast<std::uint64_t>(ranks));
    const BatchConfig config{.num_ranks = ranks, .rows_per_rank = 16384, .devices_per_node = 8};
    std::map<std::string, Mean> means;
    for (int i = 0; i < num_batches(ranks);) {
      const auto samples = draw_samples(bins, kSamplesPerRank * ranks, random);
      const auto longest = std::ranges::max_element(samples, {}, &BatchSample::rows);
      if (longest->rows > config.rows_per_rank * ranks) continue;  // fits nowhere
      for (const auto& figures : compare_batch(samples, config)) {
        add(figures, means[figures.scheme]);
      }
      ++i;
    }
    for (const auto& [scheme, mean] : means) rows.push_back(row_of(scheme, ranks, mean));
  }
  if (options.out.empty()) return;
  using cli::Curve;
  const std::string stem = options.out.substr(0, options.out.rfind(".svg"));
  for (const auto& [curve, name, what] :
       {std::tuple{Curve::StepTime, ".svg", ""},
        std::tuple{Curve::NodeBytes, "-node.svg", ": what ranks wait for"},
        std::tuple{Curve::NetworkBytes, "-network.svg", ": what ranks wait for"}}) {
    std::ofstream(stem + name) << cli::curve_picture(
        rows, curve, std::string("Batches of 8 samples a rank") + what);
  }
}

}  // namespace
}  // namespace magi::bench

int main(int argc, char** argv) {
  try {
    magi::bench::run(magi::bench::parse_options(argc, argv));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "batch_growth: " << error.what() << '\n';
    return 1;
  }
}
