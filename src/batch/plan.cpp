// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <string>

#include "base/check.hpp"
#include "batch/pack.hpp"
#include "batch/report.hpp"
#include "magi/batch.hpp"

namespace magi {
namespace {

using batch::BatchWork;
using batch::Packing;
using batch::Ticks;

constexpr std::int32_t kMostChunkRows = 64;
constexpr std::int32_t kChunksPerRank = 256;
/// Another micro-batch is tried where the step is longer than this over the bound.
constexpr double kFar = 1.02;

/// The parts in the order of MicroBatch.
std::vector<MicroBatch> parts_of(const Packing& packing, const BatchConfig& config,
                                 std::int32_t num_micro_batches) {
  std::vector<MicroBatch> micro_batches(static_cast<std::size_t>(num_micro_batches));
  const auto num_ranks = static_cast<std::size_t>(config.num_ranks);
  for (std::size_t slot = 0; slot < packing.whole.size(); ++slot) {
    std::vector<BatchPart>& parts = micro_batches[slot / num_ranks].parts;
    const std::size_t first = parts.size();
    for (const batch::Work& work : packing.whole[slot]) {
      parts.push_back({work.sample, static_cast<std::int32_t>(slot % num_ranks), work.rows});
    }
    std::sort(parts.begin() + static_cast<std::ptrdiff_t>(first), parts.end(),
              [](const BatchPart& a, const BatchPart& b) { return a.sample < b.sample; });
  }
  std::vector<const batch::Spread*> spreads;
  for (const batch::Spread& spread : packing.spreads) spreads.push_back(&spread);
  std::ranges::sort(spreads, {}, [](const batch::Spread* one) { return one->work.sample; });
  for (const batch::Spread* spread : spreads) {
    std::vector<BatchPart>& parts =
        micro_batches[static_cast<std::size_t>(spread->micro_batch)].parts;
    for (std::size_t i = 0; i < spread->chunks.size(); ++i) {
      if (spread->chunks[i] == 0) continue;
      parts.push_back({spread->work.sample, spread->first + static_cast<std::int32_t>(i),
                       spread->chunks[i] * config.chunk_size});
    }
  }
  return micro_batches;
}

/// A sample that spreads in name alone is whole.
void make_whole(Packing& packing, const BatchConfig& config) {
  std::erase_if(packing.spreads, [&](const batch::Spread& spread) {
    const auto is_held = [](std::int32_t chunks) { return chunks > 0; };
    const auto held = std::ranges::find_if(spread.chunks, is_held);
    const bool is_one = std::ranges::count_if(spread.chunks, is_held) == 1;
    if (is_one) {
      const auto rank = static_cast<std::size_t>(spread.first + (held - spread.chunks.begin()));
      packing
          .whole[static_cast<std::size_t>(spread.micro_batch) *
                     static_cast<std::size_t>(config.num_ranks) +
                 rank]
          .push_back(spread.work);
    }
    return is_one;
  });
}

struct Packed {
  std::int32_t num_micro_batches = 0;
  Packing packing;
  Ticks bound = 0;  ///< of a micro-batch
};

/// The first number of micro-batches from `count` on whose memory holds all samples. Each sample
/// has room in a micro-batch of its own.
Packed pack_from(std::int32_t count, const BatchWork& work, const BatchConfig& config) {
  for (;; ++count) {
    const Ticks bound = batch::bound_of(work, config, count);
    std::optional<Packing> packing = batch::pack(work, config, count, bound);
    if (packing) return {count, *std::move(packing), bound};
    MAGI_CHECK(static_cast<std::size_t>(count) <= work.samples.size());
  }
}

/// The number of micro-batches that was asked for; else the least one, or the next where that one
/// has room to spare.
Packed pack_best(const BatchWork& work, const BatchConfig& config) {
  const std::int32_t least = batch::least_micro_batches(work, config);
  const std::int32_t asked = config.num_micro_batches;
  Packed packed = pack_from(std::max(asked, least), work, config);
  if (asked > 0 && packed.num_micro_batches > asked) {
    throw invalid("num_micro_batches", asked,
                  "0 (as many as are needed), or " + std::to_string(packed.num_micro_batches) +
                      " or more for " + std::to_string(work.total_rows) + " rows");
  }
  const bool is_near =
      static_cast<double>(packed.packing.longest) <= kFar * static_cast<double>(packed.bound);
  if (asked > 0 || is_near) return packed;
  Packed next = pack_from(packed.num_micro_batches + 1, work, config);
  return next.packing.step < packed.packing.step ? std::move(next) : std::move(packed);
}

std::int32_t default_chunk(const BatchConfig& config) {
  return std::clamp(config.rows_per_rank / kChunksPerRank, 1, kMostChunkRows);
}

}  // namespace

BatchSample causal_sample(std::int32_t rows) {
  return {rows, std::int64_t{rows} * (std::int64_t{rows} + 1) / 2};
}

BatchPlan plan_batch(std::span<const BatchSample> samples, const BatchConfig& config) {
  BatchPlan plan{.config = config, .samples = {samples.begin(), samples.end()}};
  if (config.chunk_size == 0) plan.config.chunk_size = default_chunk(config);
  const BatchWork work = batch::work_of(samples, plan.config);
  if (work.samples.empty()) {
    plan.micro_batches.resize(static_cast<std::size_t>(config.num_micro_batches));
  } else {
    Packed packed = pack_best(work, plan.config);
    make_whole(packed.packing, plan.config);
    plan.micro_batches = parts_of(packed.packing, plan.config, packed.num_micro_batches);
  }
  plan.report = batch::make_report(plan, work);
  return plan;
}

}  // namespace magi
