// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <stdexcept>

#include "cli/verify/planted_faults.hpp"

namespace magi::testing {
namespace {

constexpr StageMode kRows = StageMode::Rows;
constexpr StageMode kHeads = StageMode::Heads;

/// A rank that has work in both remote stages.
RankPlan& busy_rank(Plan& plan) {
  for (RankPlan& rank : plan.ranks) {
    if (rank.attends.size() > 2) return rank;
  }
  throw std::logic_error("the specimen has no busy rank");
}

/// A slice that has a diagonal bound.
BandSlice& banded_slice(Plan& plan) {
  for (RankPlan& rank : plan.ranks) {
    for (BandSlice& slice : rank.slices) {
      if (shrink(slice).d_max < kBandInfinity) return slice;
    }
  }
  throw std::logic_error("the specimen has no band");
}

/// A transfer of several rows.
Transfer& long_transfer(Plan& plan) {
  return *std::max_element(
      plan.transfers.begin(), plan.transfers.end(),
      [](const Transfer& a, const Transfer& b) { return a.num_rows < b.num_rows; });
}

/// Gives each of two transfers the source row of the other.
void exchange_sources(Plan& plan) {
  for (Transfer& other : plan.transfers) {
    if (other.src_row == plan.transfers[0].src_row) continue;
    std::swap(other.src_row, plan.transfers[0].src_row);
    return;
  }
  throw std::logic_error("the specimen's transfers all start at one row");
}

std::int32_t third_rank(const Transfer& transfer) { return 3 - transfer.src - transfer.dst; }

PlantedFault in_plan(const char* name, StageMode mode, std::function<void(Plan&)> plant) {
  return {name, Checker::Plan, mode, [plant](Specimen& specimen) { plant(specimen.plan); }};
}

std::vector<PlantedFault> slice_faults() {
  return {
      in_plan("slice without its last key", kRows,
              [](Plan& p) {
                BandSlice& slice = busy_rank(p).slices[0];
                slice = shrink(slice);
                --slice.k1;
              }),
      in_plan("slice without its first query", kHeads,
              [](Plan& p) {
                BandSlice& slice = busy_rank(p).slices[0];
                slice = shrink(slice);
                ++slice.q0;
              }),
      in_plan("local upper diagonal off by one", kRows, [](Plan& p) { --banded_slice(p).d_max; }),
      in_plan("local diagonal lost", kRows, [](Plan& p) { banded_slice(p).d_max = kBandInfinity; }),
      in_plan("slice moved by one key", kRows,
              [](Plan& p) {
                BandSlice& slice = busy_rank(p).slices.back();
                slice = shift(slice, 0, slice.k0 > 0 ? -1 : 1);
              }),
      in_plan("missing slice of an attend", kRows,
              [](Plan& p) { --busy_rank(p).attends[1].slices.end; }),
      in_plan("slice of one head section", kHeads,
              [](Plan& p) { --busy_rank(p).attends[1].slices.begin; }),
      in_plan("doubled local slice", kRows,
              [](Plan& p) {
                RankPlan& rank = busy_rank(p);
                rank.slices.push_back(rank.slices.back());
                ++rank.attends[2].slices.end;
              }),
  };
}

std::vector<PlantedFault> attend_faults() {
  return {
      in_plan("slices of two attends swapped", kRows,
              [](Plan& p) {
                RankPlan& rank = busy_rank(p);
                std::swap(rank.attends[1].slices, rank.attends[2].slices);
              }),
      in_plan("attend reads another segment", kRows,
              [](Plan& p) { busy_rank(p).attends[1].k_segment = 0; }),
      in_plan("attend before its rows", kRows,
              [](Plan& p) {
                RankPlan& rank = busy_rank(p);
                std::swap(rank.attends[1], rank.attends[2]);
              }),
      in_plan("head section done twice", kHeads,
              [](Plan& p) {
                RankPlan& rank = busy_rank(p);
                rank.attends[1].heads = rank.attends[2].heads;
              }),
      in_plan("head section missing", kHeads,
              [](Plan& p) {
                RankPlan& rank = busy_rank(p);
                rank.attends[1].heads = {0, 0};
              }),
      in_plan("head section past the heads", kHeads,
              [](Plan& p) { ++busy_rank(p).attends[2].heads.end; }),
      in_plan("own keys without a head", kRows,
              [](Plan& p) { --busy_rank(p).attends[0].heads.end; }),
      in_plan("segment with a row too many", kRows,
              [](Plan& p) { ++busy_rank(p).k.segments[1].num_rows; }),
      in_plan("attend that waits for another segment", kRows,
              [](Plan& p) { busy_rank(p).forward[3].after[0] = 1; }),
      in_plan("segment of the wrong owner", kRows,
              [](Plan& p) {
                Segment& own = p.ranks[0].k.segments[0];
                own.owner = 1;
              }),
      in_plan("work of two ranks exchanged", kRows,
              [](Plan& p) { std::swap(p.ranks[0], p.ranks[1]); }),
  };
}

std::vector<PlantedFault> transfer_faults() {
  return {
      in_plan("dropped transfer", kRows, [](Plan& p) { p.transfers.pop_back(); }),
      in_plan("doubled transfer", kRows,
              [](Plan& p) { p.transfers.insert(p.transfers.begin(), p.transfers.front()); }),
      in_plan("dropped row", kRows, [](Plan& p) { --long_transfer(p).num_rows; }),
      in_plan("one row too many", kHeads, [](Plan& p) { ++long_transfer(p).num_rows; }),
      in_plan("shifted source row", kRows,
              [](Plan& p) {
                Transfer& transfer = long_transfer(p);
                transfer.src_row += transfer.src_row > 0 ? -1 : 1;
              }),
      in_plan("shifted destination row", kRows, [](Plan& p) { ++long_transfer(p).dst_row; }),
      in_plan("wrong source rank", kRows,
              [](Plan& p) {
                Transfer& transfer = long_transfer(p);
                transfer.src = third_rank(transfer);
              }),
      in_plan("wrong destination rank", kHeads,
              [](Plan& p) {
                Transfer& transfer = long_transfer(p);
                transfer.dst = third_rank(transfer);
              }),
      in_plan("a rank that sends to itself", kRows,
              [](Plan& p) {
                Transfer& transfer = long_transfer(p);
                transfer.src = transfer.dst;
              }),
      in_plan("wrong segment", kRows,
              [](Plan& p) {
                Transfer& transfer = long_transfer(p);
                transfer.dst_segment = 3 - transfer.dst_segment;
              }),
      in_plan("segment that is not there", kRows, [](Plan& p) { p.transfers[0].dst_segment = 9; }),
      in_plan("sources of two transfers exchanged", kRows, exchange_sources),
      in_plan("no transfers at all", kRows, [](Plan& p) { p.transfers.clear(); }),
  };
}

std::vector<PlantedFault> table_faults() {
  std::vector<PlantedFault> faults = {
      in_plan("chunk given to another rank in one table", kRows,
              [](Plan& p) { p.placement_q.chunk_rank[0] = (p.placement_q.chunk_rank[0] + 1) % 3; }),
      in_plan(
          "chunks of a rank out of order", kRows,
          [](Plan& p) { std::swap(p.placement_k.rank_chunks[0], p.placement_k.rank_chunks[1]); }),
      in_plan("keys placed unlike the transfers say", kRows,
              [](Plan& p) {
                std::vector<std::int32_t> rank = p.placement_k.chunk_rank;
                std::rotate(rank.begin(), rank.begin() + 1, rank.end());
                p.placement_k = placement_from_chunks(p.placement_k.num_rows,
                                                      p.placement_k.chunk_size, 3, rank);
              }),
      in_plan("plan of another mask", kHeads, [](Plan& p) { ++p.mask.slices[0].d_max; }),
      in_plan("bytes of a pair in the report", kRows,
              [](Plan& p) { p.report.pair_bytes[1] += p.config.element_bytes; }),
      in_plan("area of a rank in the report", kRows, [](Plan& p) { --p.report.rank_area[2]; }),
      in_plan("received rows in the report", kRows, [](Plan& p) { ++p.report.remote_rows[0]; }),
      in_plan("one exchange fewer than there are", kRows, [](Plan& p) { p.exchanges.pop_back(); }),
      in_plan("exchange of a later stage", kRows, [](Plan& p) { ++p.exchanges[1].stage; }),
  };
  PlantedFault stale =
      in_plan("digest that does not follow the plan", kRows, [](Plan& p) { p.digest ^= 1u; });
  stale.is_digest_renewed = false;
  faults.push_back(stale);
  return faults;
}

}  // namespace

std::vector<PlantedFault> plan_faults() {
  std::vector<PlantedFault> faults = slice_faults();
  for (auto* more : {&attend_faults, &transfer_faults, &table_faults}) {
    const std::vector<PlantedFault> part = (*more)();
    faults.insert(faults.end(), part.begin(), part.end());
  }
  return faults;
}

}  // namespace magi::testing
