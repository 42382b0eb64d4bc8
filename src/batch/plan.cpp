// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <string>
#include <tuple>

#include "base/check.hpp"
#include "batch/pack.hpp"
#include "batch/work.hpp"
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

/// The parts in the order of MicroBatch; a sample that spreads in name alone is whole.
std::vector<MicroBatch> parts_of(const Packing& packing, const BatchConfig& config,
                                 std::span<const BatchSample> samples,
                                 std::int32_t num_micro_batches) {
  std::vector<MicroBatch> micro_batches(static_cast<std::size_t>(num_micro_batches));
  const auto num_ranks = static_cast<std::size_t>(config.num_ranks);
  for (std::size_t slot = 0; slot < packing.whole.size(); ++slot) {
    for (const batch::Work& work : packing.whole[slot]) {
      micro_batches[slot / num_ranks].parts.push_back(
          {work.sample, static_cast<std::int32_t>(slot % num_ranks), work.rows});
    }
  }
  for (const batch::Spread& spread : packing.spreads) {
    const auto micro_batch = static_cast<std::size_t>(spread.micro_batch);
    for (std::size_t i = 0; i < spread.chunks.size(); ++i) {
      if (spread.chunks[i] == 0) continue;
      micro_batches[micro_batch].parts.push_back(
          {spread.work.sample, spread.first + static_cast<std::int32_t>(i),
           std::min(spread.chunks[i] * config.chunk_size, spread.work.rows)});
    }
  }
  // A part of several has at least a chunk less than the padded sample.
  const auto key = [&](const BatchPart& part) {
    const bool is_whole = part.rows == samples[static_cast<std::size_t>(part.sample)].rows;
    return std::tuple(!is_whole, is_whole ? part.rank : 0, part.sample, part.rank);
  };
  for (MicroBatch& one : micro_batches) std::ranges::sort(one.parts, {}, key);
  return micro_batches;
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

}  // namespace

BatchSample causal_sample(std::int32_t rows) {
  return {rows, std::int64_t{rows} * (std::int64_t{rows} + 1) / 2};
}

BatchPlan plan_batch(std::span<const BatchSample> samples, const BatchConfig& config) {
  BatchPlan plan{.config = config, .samples = {samples.begin(), samples.end()}};
  if (config.chunk_size == 0) {
    plan.config.chunk_size = std::clamp(config.rows_per_rank / kChunksPerRank, 1, kMostChunkRows);
  }
  const BatchWork work = batch::work_of(samples, plan.config);
  if (work.samples.empty()) {
    plan.micro_batches.resize(static_cast<std::size_t>(config.num_micro_batches));
  } else {
    const Packed packed = pack_best(work, plan.config);
    plan.micro_batches = parts_of(packed.packing, plan.config, samples, packed.num_micro_batches);
  }
  plan.report = batch::make_report(plan, work);
  return plan;
}

}  // namespace magi
