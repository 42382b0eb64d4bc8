// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "simulate/simulate.hpp"

// Simulations of many ranks, chunk sizes, overlap degrees and bounds of exchange memory, and what
// is printed of them.
namespace magi::cli {

struct SweepOptions {
  std::vector<std::int32_t> ranks = {8};
  std::vector<std::optional<std::int32_t>> chunks = {std::nullopt};
  std::vector<std::optional<std::int32_t>> degrees = {std::nullopt};
  std::vector<std::optional<std::int64_t>> bounds = {std::nullopt};
  std::vector<std::string> strategies;
  PlanConfig config;
  simulate::Cluster cluster;
  std::int32_t ulysses_degree = 0;
  std::optional<simulate::Problem::Latents> latents = {};
};

/// One strategy at one point of a sweep.
struct SweepRow {
  std::int32_t ranks = 0;
  std::optional<std::int32_t> chunk;   ///< as asked for; absent: the library's rule
  std::optional<std::int32_t> degree;  ///< absent: chosen by the cost model
  std::optional<std::int64_t> bound;   ///< PlanConfig::max_exchange_bytes
  bool is_baseline = false;            ///< none of these has a meaning for it
  std::int32_t num_rows = 0;
  simulate::Figures figures;
};

/// Baselines have one row for each number of ranks, the library's placements one for each point.
/// `mask_for` gives the mask of a number of ranks; `advance` is called when a strategy is done on
/// a number of ranks. Throws InvalidArgument as simulate() does.
std::vector<SweepRow> run_sweep(
    const SweepOptions& options, const std::function<Mask(std::int32_t)>& mask_for,
    const std::function<void()>& advance = [] {});

/// Writes for a person one line for each row.
std::string to_table(const SweepOptions& options, const std::vector<SweepRow>& rows);
std::string to_json(const SweepOptions& options, const std::vector<SweepRow>& rows);

/// The values that a picture shows by the number of ranks.
enum class Curve {
  StepTime,      ///< forward and backward of one layer
  NetworkBytes,  ///< sent between nodes in both, by the mean rank
  NodeBytes,     ///< sent inside nodes
};
/// An SVG text: one curve for each strategy, and for each of its chunk sizes, degrees
/// and bounds.
std::string curve_picture(const std::vector<SweepRow>& rows, Curve curve, const std::string& title);

/// A mask of `rows` rows by its name (dist_mask_names). Beyond the longest recorded documents
/// these are repeated. Throws InvalidArgument as dist_mask does.
Mask growing_mask(const std::string& name, std::int64_t rows);

}  // namespace magi::cli
