// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

// The keys of a plan file, in the order in which they are written. Records are arrays of integers:
// slice [q0, q1, k0, k1, d_min | null, d_max | null], segment [owner, num_rows, wave],
// wave [k_segment, first head, end head, first slice, end slice],
// transfer [src, dst, src_row, dst_segment, dst_row, num_rows].
namespace magi::planner {

using Keys = std::string_view;

inline constexpr Keys kPlanFormat = "magi plan";
inline constexpr std::int32_t kPlanVersion = 1;

inline constexpr std::array<Keys, 11> kPlanKeys = {
    "format",    "version", "mask",      "config", "placement_q", "placement_k",
    "num_waves", "ranks",   "transfers", "report", "digest"};
inline constexpr std::array<Keys, 3> kMaskKeys = {"rows_q", "rows_k", "slices"};
inline constexpr std::array<Keys, 12> kConfigKeys = {
    "num_ranks", "num_heads_q", "num_heads_kv",   "head_dim_qk", "head_dim_v",    "element_bytes",
    "placement", "placement_k", "overlap_degree", "wave_mode",   "min_wave_rows", "cost"};
inline constexpr std::array<Keys, 9> kPlacementConfigKeys = {
    "algorithm", "chunk_size",        "min_chunks_per_rank", "uneven_shard", "token_tolerance",
    "top_p",     "num_select_chunks", "allocation_ratio",    "seed"};
inline constexpr std::array<Keys, 5> kCostKeys = {"flops_per_second", "backward_flops_per_second",
                                                  "bytes_per_second", "seconds_per_transfer",
                                                  "seconds_per_launch"};
inline constexpr std::array<Keys, 4> kPlacementKeys = {"num_rows", "chunk_size", "num_ranks",
                                                       "chunk_rank"};
inline constexpr std::array<Keys, 4> kRankKeys = {"q", "k", "slices", "waves"};
inline constexpr std::array<Keys, 11> kReportKeys = {
    "rank_area",       "rank_rows",        "remote_rows",         "pair_bytes",
    "balance",         "total_bytes",      "lower_bound_bytes",   "ring_bytes",
    "forward_seconds", "backward_seconds", "exposed_comm_seconds"};
inline constexpr std::array<Keys, 3> kWaveModeNames = {"auto", "heads", "rows"};

}  // namespace magi::planner
