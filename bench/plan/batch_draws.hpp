// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/random.hpp"
#include "bench/document_bench.hpp"
#include "magi/batch.hpp"

namespace magi::bench {

struct Bin {
  std::int32_t low = 0;
  std::int32_t high = 0;
  std::int64_t end = 0;  ///< counts up to here
};

/// Bins of the file beside the draws.
inline std::vector<Bin> read_bins(const Options& options) {
  const std::string folder = options.draws.substr(0, options.draws.find_last_of('/') + 1);
  std::ifstream file(folder + "document_lengths.csv");
  std::string line;
  if (!std::getline(file, line)) throw std::runtime_error("cannot read document_lengths.csv");
  std::vector<Bin> bins;
  std::int64_t end = 0;
  while (std::getline(file, line)) {
    std::ranges::replace(line, ',', ' ');
    std::istringstream fields(line);
    Bin bin;
    std::int64_t count = 0;
    fields >> bin.low >> bin.high >> count;
    bin.end = end += count;
    bins.push_back(bin);
  }
  return bins;
}

/// Causal samples with lengths of the file.
inline std::vector<BatchSample> draw_samples(const std::vector<Bin>& bins, int count,
                                             RandomStream& random) {
  std::vector<BatchSample> samples;
  for (int i = 0; i < count; ++i) {
    const auto at =
        static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(bins.back().end));
    const auto bin = std::ranges::upper_bound(bins, at, {}, &Bin::end);
    samples.push_back(causal_sample(random.between(bin->low, bin->high)));
  }
  return samples;
}

}  // namespace magi::bench
