// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <string>

#include "base/check.hpp"
#include "base/math.hpp"
#include "batch/work.hpp"
#include "magi/batch.hpp"

namespace magi {
namespace {

using batch::samples_of;

/// The parts of a micro-batch: whole ones come first, then each sample that spreads.
std::span<const BatchPart> parts_of(const BatchPlan& plan, std::int32_t micro_batch) {
  if (micro_batch < 0 || micro_batch >= static_cast<std::int32_t>(plan.micro_batches.size())) {
    throw invalid("micro_batch", micro_batch,
                  "0 or more, below their number, " + std::to_string(plan.micro_batches.size()));
  }
  return plan.micro_batches[static_cast<std::size_t>(micro_batch)].parts;
}

std::int32_t chunks_of(const BatchPlan& plan, std::int64_t rows) {
  return static_cast<std::int32_t>(ceil_div<std::int64_t>(rows, plan.config.chunk_size));
}

/// Chunks of the rows that each rank holds on its own: whole samples, or padding in place of
/// nothing.
std::vector<std::int32_t> own_chunks(const BatchPlan& plan, std::span<const BatchPart> parts) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(plan.config.num_ranks), 0);
  std::vector<bool> is_busy(rows.size(), false);
  for (const std::span<const BatchPart> sample : samples_of(parts)) {
    for (const BatchPart& part : sample) is_busy[static_cast<std::size_t>(part.rank)] = true;
    if (sample.size() == 1) rows[static_cast<std::size_t>(sample[0].rank)] += sample[0].rows;
  }
  std::vector<std::int32_t> chunks;
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    chunks.push_back(is_busy[rank] ? chunks_of(plan, rows[rank]) : 1);
  }
  return chunks;
}

/// Visible pairs of the rows of each chunk.
std::vector<std::int64_t> chunk_areas(const Mask& mask, std::int32_t chunk_size,
                                      std::size_t num_chunks) {
  std::vector<std::int64_t> areas(num_chunks, 0);
  for (const BandSlice& slice : mask.slices) {
    for (std::int32_t chunk = slice.q0 / chunk_size; chunk * std::int64_t{chunk_size} < slice.q1;
         ++chunk) {
      const Range rows{chunk * chunk_size, (chunk + 1) * chunk_size};
      areas[static_cast<std::size_t>(chunk)] += area(cut_q(slice, rows));
    }
  }
  return areas;
}

/// Deals chunks in `order` to the ranks of a sample's parts, and says how far the largest share of
/// pairs for each row is above the mean.
double deal(const BatchPlan& plan, std::span<const BatchPart> sample,
            std::span<const std::int64_t> areas, std::span<const std::size_t> order,
            std::span<std::int32_t> ranks) {
  const auto all =
      static_cast<double>(std::accumulate(areas.begin(), areas.end(), std::int64_t{0}));
  double largest = 0.0;
  std::size_t next = 0;
  for (const BatchPart& part : sample) {
    const auto count = static_cast<std::size_t>(chunks_of(plan, part.rows));
    double pairs = 0.0;
    for (std::size_t i = 0; i < count; ++i, ++next) {
      ranks[order[next]] = part.rank;
      pairs += static_cast<double>(areas[order[next]]);
    }
    largest = std::max(largest, pairs / static_cast<double>(count));
  }
  return all > 0.0 ? largest * static_cast<double>(areas.size()) / all : 1.0;
}

/// Each chunk with the one that has as many fewer pairs than the mean as it has more, if pairs grow
/// evenly.
std::vector<std::size_t> by_pairs(std::vector<std::size_t> sorted) {
  std::vector<std::size_t> order;
  for (std::size_t low = 0, high = sorted.size(); low < high;) {
    order.push_back(sorted[low++]);
    if (low < high) order.push_back(sorted[--high]);
  }
  return order;
}

/// Each chunk, the one of most pairs first, to the rank that lacks most for each chunk that it is
/// still to get.
void deal_to_needy(const BatchPlan& plan, std::span<const BatchPart> sample,
                   std::span<const std::int64_t> areas, std::span<const std::size_t> sorted,
                   std::span<std::int32_t> ranks) {
  struct Need {
    double pairs = 0.0;
    double chunks = 0.0;
    bool operator<(const Need& other) const {
      const double own = pairs * other.chunks;  // compared as fractions
      const double others = other.pairs * chunks;
      return own != others ? own < others : chunks < other.chunks;
    }
  };
  const auto all =
      static_cast<double>(std::accumulate(areas.begin(), areas.end(), std::int64_t{0}));
  std::vector<Need> needs;
  for (const BatchPart& part : sample) {
    const double chunks = chunks_of(plan, part.rows);
    needs.push_back({all * chunks / static_cast<double>(areas.size()), chunks});
  }
  for (std::size_t i = sorted.size(); i-- > 0;) {
    std::size_t best = needs.size();
    for (std::size_t n = 0; n < needs.size(); ++n) {
      if (needs[n].chunks == 0.0) continue;
      if (best == needs.size() || needs[best] < needs[n]) best = n;
    }
    needs[best].pairs -= static_cast<double>(areas[sorted[i]]);
    needs[best].chunks -= 1.0;
    ranks[sorted[i]] = sample[best].rank;
  }
}

/// Gives the chunks of a sample to its ranks: in order where that is even, else by pairs of a long
/// and a short chunk, else one by one.
void place_sample(const BatchPlan& plan, std::span<const BatchPart> sample,
                  std::span<const std::int64_t> areas, std::span<std::int32_t> ranks) {
  constexpr double kEven = 1.02;
  std::vector<std::size_t> order(areas.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (deal(plan, sample, areas, order, ranks) <= kEven) return;
  std::ranges::stable_sort(order, {}, [&](std::size_t chunk) { return areas[chunk]; });
  if (deal(plan, sample, areas, by_pairs(order), ranks) <= kEven) return;
  deal_to_needy(plan, sample, areas, order, ranks);
}

/// A causal mask unless the caller has one.
void append_mask(const BatchPlan& plan, const PackedSample& packed, std::span<const Mask> masks,
                 Mask& result) {
  const auto index = static_cast<std::size_t>(packed.sample);
  const auto [rows, pairs] = plan.samples[index];
  if (masks.empty()) {
    const std::int64_t causal = causal_sample(rows).pairs;
    if (pairs != causal) {
      throw invalid("visible pairs of sample " + std::to_string(index), pairs,
                    std::to_string(causal) +
                        ", those of a causal sample, unless the masks of all "
                        "samples are given");
    }
    const Range range{packed.begin, packed.begin + rows};
    result.slices.push_back(band_slice(range, range, MaskType::Causal));
    return;
  }
  const Mask& mask = masks[index];
  if (mask.rows_q != rows || mask.rows_k != rows) {
    throw invalid("rows of mask " + std::to_string(index), mask.rows_q,
                  std::to_string(rows) + ", as many queries as keys, as the sample has");
  }
  if (const std::int64_t visible = area(mask); visible != pairs) {
    throw invalid("visible pairs of mask " + std::to_string(index), visible,
                  std::to_string(pairs) + ", those of the sample");
  }
  for (const BandSlice& slice : mask.slices) {
    result.slices.push_back(shift(slice, packed.begin, packed.begin));
  }
}

}  // namespace

PackedMicroBatch pack_micro_batch(const BatchPlan& plan, std::int32_t micro_batch) {
  const std::span<const BatchPart> parts = parts_of(plan, micro_batch);
  const std::int32_t chunk = plan.config.chunk_size;
  const std::vector<std::int32_t> own = own_chunks(plan, parts);
  PackedMicroBatch packed;
  std::int32_t begin = 0;  // of the rank's next sample
  std::int32_t rank = 0;
  const auto end_rank = [&] {
    packed.num_rows += own[static_cast<std::size_t>(rank++)] * chunk;
    begin = packed.num_rows;
  };
  for (const std::span<const BatchPart> sample : samples_of(parts)) {
    const bool is_whole = sample.size() == 1;
    while (rank < (is_whole ? sample[0].rank : plan.config.num_ranks)) end_rank();
    packed.samples.push_back({sample[0].sample, is_whole ? begin : packed.num_rows});
    for (const BatchPart& part : sample) (is_whole ? begin : packed.num_rows) += part.rows;
  }
  while (rank < plan.config.num_ranks) end_rank();
  return packed;
}

Mask micro_batch_mask(const BatchPlan& plan, std::int32_t micro_batch,
                      std::span<const Mask> masks) {
  if (!masks.empty() && masks.size() != plan.samples.size()) {
    throw invalid("number of masks", masks.size(),
                  "0 (causal), or " + std::to_string(plan.samples.size()) + ", one a sample");
  }
  const PackedMicroBatch packed = pack_micro_batch(plan, micro_batch);
  Mask mask{packed.num_rows, packed.num_rows, {}};
  for (const PackedSample& sample : packed.samples) append_mask(plan, sample, masks, mask);
  return mask;
}

Placement micro_batch_placement(const BatchPlan& plan, std::int32_t micro_batch, const Mask& mask) {
  const std::span<const BatchPart> parts = parts_of(plan, micro_batch);
  const std::int32_t chunk = plan.config.chunk_size;
  const std::int32_t num_rows = pack_micro_batch(plan, micro_batch).num_rows;
  if (mask.rows_q != num_rows || mask.rows_k != num_rows) {
    throw invalid("rows of the micro-batch's mask", mask.rows_q, std::to_string(num_rows));
  }
  validate(mask);
  std::vector<std::int32_t> chunk_rank;
  const std::vector<std::int32_t> own = own_chunks(plan, parts);
  for (std::size_t rank = 0; rank < own.size(); ++rank) {
    chunk_rank.insert(chunk_rank.end(), static_cast<std::size_t>(own[rank]),
                      static_cast<std::int32_t>(rank));
  }
  std::size_t begin = chunk_rank.size();
  chunk_rank.resize(static_cast<std::size_t>(num_rows / chunk));
  const std::vector<std::int64_t> areas = chunk_areas(mask, chunk, chunk_rank.size());
  for (const std::span<const BatchPart> sample : samples_of(parts)) {
    if (sample.size() == 1) continue;
    std::size_t count = 0;
    for (const BatchPart& part : sample) count += static_cast<std::size_t>(part.rows / chunk);
    place_sample(plan, sample, std::span(areas).subspan(begin, count),
                 std::span(chunk_rank).subspan(begin, count));
    begin += count;
  }
  return placement_from_chunks(num_rows, chunk, plan.config.num_ranks, std::move(chunk_rank));
}

Plan plan_micro_batch(const BatchPlan& plan, std::int32_t micro_batch, PlanConfig config,
                      std::span<const Mask> masks) {
  config.num_ranks = plan.config.num_ranks;
  config.devices_per_node = plan.config.devices_per_node;
  const Mask mask = micro_batch_mask(plan, micro_batch, masks);
  const Placement placement = micro_batch_placement(plan, micro_batch, mask);
  return make_plan_on(mask, config, placement, placement);
}

}  // namespace magi
