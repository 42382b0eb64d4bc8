// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "batch/slots.hpp"
#include "batch/work.hpp"

namespace magi::batch {
namespace {

/// The parts of one sample that spreads.
Spread spread_of(const Work& work, std::int32_t micro_batch, std::span<const BatchPart> parts,
                 std::int32_t chunk_size) {
  Spread spread{
      .work = work, .micro_batch = micro_batch, .first = parts.front().rank, .chunks = {}};
  const std::int32_t count = parts.back().rank - spread.first + 1;
  spread.chunks.assign(static_cast<std::size_t>(count), 0);
  for (const BatchPart& part : parts) {
    spread.chunks[static_cast<std::size_t>(part.rank - spread.first)] = part.rows / chunk_size;
  }
  return spread;
}

Slots fill_slots(const BatchPlan& plan, const BatchWork& work) {
  std::vector<const Work*> by_sample(plan.samples.size(), nullptr);
  for (const Work& one : work.samples) by_sample[static_cast<std::size_t>(one.sample)] = &one;
  Slots slots(plan.config, work, static_cast<std::int32_t>(plan.micro_batches.size()));
  for (std::size_t m = 0; m < plan.micro_batches.size(); ++m) {
    for (const std::span<const BatchPart> sample : samples_of(plan.micro_batches[m].parts)) {
      const Work& one = *by_sample[static_cast<std::size_t>(sample[0].sample)];
      if (sample.size() == 1) {
        slots.add(slots.slot_of(static_cast<std::int32_t>(m), sample[0].rank), one);
      } else {
        slots.add(spread_of(one, static_cast<std::int32_t>(m), sample, plan.config.chunk_size));
      }
    }
  }
  return slots;
}

/// The bytes that ranks wait for in `ticks`.
std::int64_t bytes_of(Ticks ticks, Ticks row_ticks, double row_bytes) {
  const Ticks rows = row_ticks == 0 ? 0 : ticks / row_ticks;
  return std::llround(static_cast<double>(rows) * row_bytes);
}

}  // namespace

BatchReport make_report(const BatchPlan& plan, const BatchWork& work) {
  const Slots slots = fill_slots(plan, work);
  BatchReport report;
  Ticks fetch = 0;
  Ticks cross = 0;
  for (std::size_t slot = 0; slot < slots.size(); ++slot) {
    report.rank_rows.push_back(slots.padded_rows(slot));
    report.rank_seconds.push_back(static_cast<double>(slots.time(slot)) / kTicksPerSecond);
    fetch += slots.fetch(slot);
    cross += slots.cross(slot);
  }
  report.step_seconds = static_cast<double>(slots.longest()) *
                        static_cast<double>(plan.micro_batches.size()) / kTicksPerSecond;
  report.lower_bound_seconds = step_bound(work, plan.config);
  report.network_bytes = bytes_of(cross, work.row_cross, plan.config.cost.bytes_per_token);
  report.node_bytes =
      bytes_of(fetch, work.row_fetch, plan.config.cost.bytes_per_token) - report.network_bytes;
  return report;
}

}  // namespace magi::batch
