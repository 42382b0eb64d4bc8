// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "simulate/simulate.hpp"

// One function for each kind of strategy; simulate() chooses.
namespace magi::simulate {

inline constexpr std::int64_t kSumBytes = 4;  ///< of an element of a float32 sum

/// Elements of one row of K and V together, of all heads.
inline std::int64_t key_elements(const PlanConfig& config) {
  return std::int64_t{config.num_heads_kv} * (config.head_dim_qk + config.head_dim_v);
}
/// Elements of one row of Q, or of out where the dims are the same.
inline std::int64_t query_elements(const PlanConfig& config) {
  return std::int64_t{config.num_heads_q} * config.head_dim_qk;
}
inline std::int64_t out_elements(const PlanConfig& config) {
  return std::int64_t{config.num_heads_q} * config.head_dim_v;
}

/// A row's tensors and gradients in a backward: q, k, v, out, their gradients, lse, and the float32
/// sums of dq.
inline std::int64_t row_memory(const PlanConfig& config) {
  const std::int64_t elements =
      query_elements(config) + out_elements(config) + key_elements(config);
  return 2 * elements * config.element_bytes + config.num_heads_q * kSumBytes +
         query_elements(config) * kSumBytes;
}

/// The rates of the cluster, by which a plan chooses its overlap degree and counts crossings. A
/// launch is that of CostModel: a cluster's is the least time of an attention call, not of others.
CostModel cost_of(const Cluster& cluster);

/// Keys and values of latents that are there at a time, and as much of their gradients.
inline constexpr std::int64_t kExpandedBytes = std::int64_t{1} << 30;
/// Latents go to the ranks that need them, which project them, some heads at a time.
Figures simulate_latents(const Problem& problem);

/// The library's plan with `algorithm`.
Figures simulate_plan(const Problem& problem, PlacementAlgorithm algorithm);

/// Keys and values of every rank go around all ranks.
Figures simulate_ring(const Problem& problem, RowOrder order);
/// All keys and values on every rank, rows in zigzag order.
Figures simulate_all_gather(const Problem& problem);
/// All rows and a share of the heads on every rank.
Figures simulate_ulysses(const Problem& problem);
/// The two together: `degree` neighbours share heads, ranks of the same place make a zigzag ring.
Figures simulate_usp(const Problem& problem);

/// A ring whose members are groups of `heads_shared` neighbours with the same rows and a share of
/// the heads each.
struct RingShape {
  RowParts parts;
  std::int32_t heads_shared = 1;
};
/// Adds a ring's times, bytes and work to figures of all ranks.
void add_ring(const Problem& problem, const RingShape& shape, Figures& figures);
/// Adds the all-to-alls of q, k, v, out and their gradients between groups of `degree` neighbours,
/// each with `rows` rows before.
void add_all_to_alls(const Problem& problem, std::int32_t degree, std::int64_t rows,
                     Figures& figures);

}  // namespace magi::simulate
