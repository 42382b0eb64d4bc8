// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "bench/distributed/baselines.hpp"
#include "bench/distributed/dist_bench.hpp"
#include "magi/plan.hpp"

namespace magi::cli {

/// Something to be timed on this rank. `rows`: those of the sequence whose results it has, in local
/// order; rows of padding follow them.
struct Side {
  DistSide id = DistSide::Alone;
  Rows rows;
  AttentionArrays arrays;
  std::unique_ptr<RankAttention> attention;
  const Communicator* group = nullptr;  ///< whose bytes count; null: none travel
  std::shared_ptr<const Plan> plan;     ///< of the library's distributed attention alone
};

/// One mask over a sequence, whose tensors every rank holds, and makes the sides of it.
class Problem {
 public:
  /// What it refers to outlives it; link: null where there are no baselines.
  struct Rank {
    RankDevice& device;
    Communicator& ours;
    Link* link = nullptr;
    const Communicator* baselines = nullptr;
  };
  Problem(const DistBenchOptions& options, const Rank& rank, const std::string& mask,
          std::int32_t tokens);

  const Mask& mask() const { return mask_; }
  std::int32_t total() const { return mask_.rows_q; }
  /// Of one pass on all ranks together.
  double flops(std::size_t pass) const;

  /// Whether a side runs on so many ranks and heads.
  bool allows(DistSide side) const;
  /// Collective.
  Side make(DistSide side) const;
  /// What is left of the library's distributed attention without communication: the attend of the
  /// rank's plan, or where the plan has several our kernel for its rows, over keys at hand.
  Side without_communication(const Side& side) const;

 private:
  Side alone() const;
  Side ours() const;
  std::unique_ptr<RankAttention> baseline(DistSide side, Rows& rows) const;
  std::unique_ptr<RankAttention> usp(Rows& rows) const;
  BaselineParts parts() const;
  /// Tensors of these rows, with values of the whole sequence, and rows of zeros behind them.
  AttentionArrays take(const Rows& rows_q, const Rows& rows_k, RowCounts padding = {}) const;
  void take(const TensorView& whole, const Rows& rows, const TensorView& target) const;

  Rank rank_;
  AttentionShape shape_;
  Mask mask_;
  Array q_, k_, v_, dout_;
};

}  // namespace magi::cli
