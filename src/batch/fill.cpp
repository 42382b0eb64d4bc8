// SPDX-License-Identifier: Apache-2.0
#include "batch/fill.hpp"

#include <cmath>
#include <limits>

#include "base/math.hpp"

namespace magi::batch {
namespace {

/// A rank's time is base + fixed + slope * chunks, once it takes any chunk.
struct Line {
  double base = 0.0;
  double most = 0.0;  ///< chunks
};

struct Lines {
  std::vector<Line> ranks;
  double fixed = 0.0;
  double slope = 0.0;

  double chunks_at(const Line& line, double level) const {
    const double above = level - line.base - fixed;
    return above <= 0.0 ? 0.0 : std::min(above / slope, line.most);
  }
  double chunks_at(double level) const {
    double sum = 0.0;
    for (const Line& line : ranks) sum += chunks_at(line, level);
    return sum;
  }
};

Lines lines_of(const Work& work, const Window& window, const Slots& slots, const BatchWork& batch,
               const BatchConfig& config) {
  Lines lines;
  const auto chunk_rows = static_cast<double>(config.chunk_size);
  const double chunks = std::ceil(work.rows / chunk_rows);
  const double chunk_ticks = static_cast<double>(work.ticks) / chunks;
  const double fetch = static_cast<double>(batch.row_fetch) * chunk_rows;
  const std::int32_t size = node_size(config);
  const std::int32_t nodes = ceil_div(window.count, size);
  const double cross =
      static_cast<double>(batch.row_cross) * chunk_rows * chunks * (1.0 - 1.0 / nodes) / size;
  // Of one rank nothing is fetched; what a rank holds of several it need not fetch.
  const bool is_fetching = window.count > 1 && fetch * chunks > cross;
  lines.fixed = window.count == 1 ? 0.0 : std::max(fetch * chunks, cross);
  lines.slope = chunk_ticks - (is_fetching ? fetch : 0.0);
  // Where fetching outweighs computing, memory alone asks for ranks, and they share alike.
  lines.slope = std::max(lines.slope, 1e-3 * (chunk_ticks + fetch) + 1e-9);
  lines.ranks.reserve(static_cast<std::size_t>(window.count));
  const auto first =
      static_cast<std::size_t>(window.micro_batch) * static_cast<std::size_t>(config.num_ranks) +
      static_cast<std::size_t>(window.first);
  for (std::size_t slot = first; slot < first + static_cast<std::size_t>(window.count); ++slot) {
    lines.ranks.push_back(
        {static_cast<double>(slots.time(slot)), static_cast<double>(slots.chunks_left(slot))});
  }
  return lines;
}

/// The lowest level at which the ranks hold all chunks.
double level_of(const Lines& lines, double chunks) {
  double low = std::numeric_limits<double>::max();
  double high = 0.0;
  double room = 0.0;
  for (const Line& line : lines.ranks) {
    low = std::min(low, line.base);
    high = std::max(high, line.base + lines.fixed + lines.slope * std::min(line.most, chunks));
    room += line.most;
  }
  if (room < chunks) return std::numeric_limits<double>::infinity();
  constexpr int kSteps = 40;
  for (int i = 0; i < kSteps && high - low > 1e-5 * high; ++i) {
    const double middle = 0.5 * (low + high);
    (lines.chunks_at(middle) >= chunks ? high : low) = middle;
  }
  return high;
}

}  // namespace

Filling fill(const Work& work, const Window& window, const Slots& slots, const BatchWork& batch,
             const BatchConfig& config) {
  const Lines lines = lines_of(work, window, slots, batch, config);
  const std::int32_t chunks = ceil_div(work.rows, config.chunk_size);
  Filling filling{.level = level_of(lines, chunks), .chunks = {}};
  if (std::isinf(filling.level)) return filling;
  // Sums are rounded, so that parts add up; at the level the ranks hold as much or slightly more.
  const double all = lines.chunks_at(filling.level);
  double sum = 0.0;
  std::int32_t given = 0;
  for (const Line& line : lines.ranks) {
    sum += lines.chunks_at(line, filling.level) * (chunks / all);
    const std::int32_t end = std::min(static_cast<std::int32_t>(std::lround(sum)), chunks);
    filling.chunks.push_back(end - given);
    given = end;
  }
  return filling;
}

}  // namespace magi::batch
