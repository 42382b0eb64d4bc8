// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "magi/attention.hpp"
#include "magi/comm.hpp"
#include "magi/plan.hpp"
#include "magi/tensor.hpp"

namespace magi {

/// Plans by value: equal (mask, config) gives the same plan object; the least recently used one
/// leaves first. Thread-safe.
class PlanCache {
 public:
  explicit PlanCache(std::size_t capacity);
  ~PlanCache();
  std::shared_ptr<const Plan> find_or_make(const Mask& mask, const PlanConfig& config);
  std::size_t size() const;
  void clear();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// How gradients of an undispatched (replicated) tensor reach the shards.
enum class UndispatchGradient : std::int32_t {
  Replicated,  ///< every rank holds the whole gradient: keep the own rows
  Partial,     ///< every rank holds a part of the sum: reduce-scatter
};

/// Global row of every local row of `rank`, in local order; padding rows are clamped to the last
/// valid row.
std::vector<std::int64_t> position_ids(const Placement& placement, std::int32_t rank,
                                       std::int32_t num_valid_rows);

/// The result of one forward call on a rank; what backward needs besides q, k, v.
struct AttentionResult {
  TensorView out;         ///< [local rows_q, heads_q, dim_v]
  TensorView lse;         ///< [local rows_q, heads_q]
  TensorView max_logits;  ///< empty, or [heads_q], already the maximum over ranks
};

/// Runs a plan on one rank: owns receive buffers and the exchange tables derived from the plan.
/// Calls are collective and come in the same order on every rank of the group. The caller owns all
/// tensors.
class DistributedAttention {
 public:
  /// Compares the plan's digest with the other ranks' (throws CommError naming them).
  /// `communicator` must outlive the object.
  DistributedAttention(std::shared_ptr<const Plan> plan, Communicator& communicator);
  ~DistributedAttention();
  DistributedAttention(DistributedAttention&&) noexcept;
  DistributedAttention& operator=(DistributedAttention&&) noexcept;

  const Plan& plan() const;

  /// q [local rows_q, heads_q, dim], k, v [local rows_k, heads_kv, dim] -> result (preallocated by
  /// the caller).
  void forward(const TensorView& q, const TensorView& k, const TensorView& v,
               const TensorView& sink, const AttentionParams& params,
               const AttentionResult& result);

  struct Gradients {
    TensorView dq, dk, dv;
    TensorView dsink;  ///< of this rank's rows; the caller sums over ranks if wanted
  };
  /// Remote k and v are cast again; partial dk, dv are summed at the owner in rank order.
  void backward(const TensorView& q, const TensorView& k, const TensorView& v,
                const TensorView& sink, const AttentionParams& params,
                const AttentionResult& forward_result, const TensorView& dout,
                const TensorView& dlse, const Gradients& gradients);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Global [rows, ...] -> local [local rows, ...]; rows beyond the global tensor (padding) are set
/// to pad_value. No communication.
void dispatch(const TensorView& global, const Placement& placement, std::int32_t rank,
              const TensorView& local, double pad_value = 0.0);
/// Backward of undispatch(Replicated) and adjoint of dispatch on one rank: adds nothing, only
/// selects. Local -> global on every rank, padding dropped. Collective.
void undispatch(const TensorView& local, const Placement& placement, Communicator& communicator,
                const TensorView& global);
/// Gradient of undispatch: global gradient -> local gradient. Partial mode is collective.
void undispatch_backward(const TensorView& global_gradient, const Placement& placement,
                         Communicator& communicator, UndispatchGradient mode,
                         const TensorView& local_gradient);
/// Distributed roll along rows in the original order: out row (i + shift) mod n = in row i. Moves
/// only what changes rank.
void roll(const TensorView& local, const Placement& placement, std::int32_t num_valid_rows,
          std::int64_t shift, Communicator& communicator, const TensorView& out);

}  // namespace magi
