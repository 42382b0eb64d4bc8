// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "magi/plan.hpp"

// A training step over a batch of samples of any lengths: which ranks hold which sample, in which
// micro-batch. Each micro-batch becomes one Plan over all ranks.
namespace magi {

/// A sample as the planner sees it. One of 0 rows takes no part.
struct BatchSample {
  std::int32_t rows = 0;
  std::int64_t pairs = 0;  ///< visible pairs of its mask
  friend bool operator==(const BatchSample&, const BatchSample&) = default;
};
BatchSample causal_sample(std::int32_t rows);

/// The cost of a step of a model, both passes and all layers. Defaults: Qwen3-8B in 16 bits on
/// H200.
struct BatchCost {
  double flops_per_token = 45.4e9;   ///< of all but attention
  double flops_per_pair = 2.0644e6;  ///< of attention, per visible pair
  /// The bytes of keys, values and their gradients that another rank waits for: half of what moves;
  /// attention hides the rest.
  double bytes_per_token = 294912.0;
  double flops_per_second = 550e12;
  double bytes_per_second = 275e9;         ///< into one rank, inside a node
  double network_bytes_per_second = 45e9;  ///< into one rank, between nodes
  friend bool operator==(const BatchCost&, const BatchCost&) = default;
};

struct BatchConfig {
  std::int32_t num_ranks = 1;
  std::int32_t rows_per_rank = 16384;  ///< that a rank has memory for in a micro-batch
  std::int32_t devices_per_node = 0;   ///< ranks fill one node after the other; 0: one holds all
  std::int32_t num_micro_batches = 0;  ///< 0: the number of the shortest step
  /// Rows; samples that spread are cut at its multiples, and a rank's whole samples together are
  /// padded to one. 0: a 256th of rows_per_rank, 64 at most.
  std::int32_t chunk_size = 0;
  BatchCost cost = {};
  friend bool operator==(const BatchConfig&, const BatchConfig&) = default;
};

/// The rows of a sample that a rank holds. Of a sample that several ranks hold, whole chunks, the
/// last one padded.
struct BatchPart {
  std::int32_t sample = 0;
  std::int32_t rank = 0;
  std::int32_t rows = 0;
  friend bool operator==(const BatchPart&, const BatchPart&) = default;
};

/// Parts of whole samples by (rank, sample), then those of samples that spread by (sample, rank).
struct MicroBatch {
  std::vector<BatchPart> parts;
  friend bool operator==(const MicroBatch&, const MicroBatch&) = default;
};

/// Figures of a batch's plan; times are predictions.
struct BatchReport {
  std::vector<std::int64_t> rank_rows;  ///< [micro-batches * ranks], padding included
  std::vector<double> rank_seconds;     ///< [micro-batches * ranks]
  /// The longest micro-batch, as often as there are micro-batches: what a pipeline takes, and
  /// ranks that wait for one another.
  double step_seconds = 0.0;
  /// No plan of this batch and config takes a shorter step.
  double lower_bound_seconds = 0.0;
  std::int64_t node_bytes = 0;     ///< that ranks wait for, over links inside nodes
  std::int64_t network_bytes = 0;  ///< and between nodes
  double gap() const { return step_seconds > 0.0 ? step_seconds / lower_bound_seconds : 1.0; }
  friend bool operator==(const BatchReport&, const BatchReport&) = default;
};

/// A pure function of its inputs, equal on every rank.
struct BatchPlan {
  BatchConfig config;  ///< with the chunk size that was taken
  std::vector<BatchSample> samples;
  std::vector<MicroBatch> micro_batches;
  BatchReport report;
  friend bool operator==(const BatchPlan&, const BatchPlan&) = default;
};

/// Plans a batch. Throws InvalidArgument for a bad config, and naming the sample that does not fit
/// on all ranks together, or the number of micro-batches that the samples need.
BatchPlan plan_batch(std::span<const BatchSample> samples, const BatchConfig& config);

/// The place of a sample in the packed sequence of a micro-batch. A rank's whole samples follow
/// one another from a chunk's first row on; a rank that holds nothing has a chunk of padding.
struct PackedSample {
  std::int32_t sample = 0;
  std::int32_t begin = 0;
  friend bool operator==(const PackedSample&, const PackedSample&) = default;
};
struct PackedMicroBatch {
  std::int32_t num_rows = 0;
  std::vector<PackedSample> samples;  ///< by begin
};
PackedMicroBatch pack_micro_batch(const BatchPlan& plan, std::int32_t micro_batch);

/// The mask of the packed sequence. `masks`: of each sample of the batch, or none, where all are
/// causal. Throws InvalidArgument for masks whose rows or pairs are not those of the samples, and
/// for none where a sample's pairs are not those of a causal one.
Mask micro_batch_mask(const BatchPlan& plan, std::int32_t micro_batch,
                      std::span<const Mask> masks = {});

/// Which rank holds which chunk of the packed sequence. A sample that spreads gives each rank its
/// number of chunks, the longest of which go with the shortest by visible pairs.
Placement micro_batch_placement(const BatchPlan& plan, std::int32_t micro_batch, const Mask& mask);

/// The plan of a micro-batch over all ranks; `config` is taken for all but ranks and nodes.
Plan plan_micro_batch(const BatchPlan& plan, std::int32_t micro_batch, PlanConfig config,
                      std::span<const Mask> masks = {});

/// Says what is wrong with a batch's plan, one sentence each, at most 32; empty for a sound one.
std::vector<std::string> check_batch(const BatchPlan& plan);

/// Versioned JSON. Reading refuses what check_batch finds.
std::string batch_to_json(const BatchPlan& plan);
BatchPlan batch_from_json(std::string_view text);

}  // namespace magi
