// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "bench/distributed/links.hpp"
#include "bench/distributed/side.hpp"

// What other systems do, with our kernel. Tensors of a call are the rank's rows.
namespace magi::cli {

/// What a baseline is made of; all of it outlives the baseline.
struct BaselineParts {
  RankDevice& device;
  Link& link;
  AttentionShape shape;
  std::span<const BandSlice> slices;  ///< of the whole sequence
  std::int32_t total = 0;             ///< rows of the whole sequence
};

/// Keys and values of all ranks on each, again in the backward, and a sum of their gradients at
/// their owners. Keys are put in the order of the sequence, where slices of the mask stay whole.
class AllGather final : public RankAttention {
 public:
  /// rows: of each rank.
  AllGather(const BaselineParts& parts, const std::vector<Rows>& rows);
  void forward(const AttentionTensors& tensors) override;
  void backward(const AttentionTensors& tensors) override;

 private:
  /// All keys and values, [total rows, kv heads, dim] each.
  std::array<Array, 2> gather(const AttentionTensors& tensors);
  Array make_keys();

  BaselineParts parts_;
  comm::RowTable table_;
  KernelAttention kernel_;
};

/// Keys and values travel around the ring while attention of those at hand runs and merges into
/// what there is; float32 sums of their gradients travel behind them. Queries and keys that a part
/// of the mask does not touch are left out of its kernel.
class Ring final : public RankAttention {
 public:
  /// members: ranks of the ring in its order, this one among them; rows: of each member, as many.
  Ring(const BaselineParts& parts, const std::vector<std::int32_t>& members,
       const std::vector<Rows>& rows);
  void forward(const AttentionTensors& tensors) override;
  void backward(const AttentionTensors& tensors) override;

 private:
  /// Attention over the keys of the member so many places before this one.
  struct Step {
    Hull hull;
    std::unique_ptr<KernelAttention> kernel;  ///< null: nothing is seen
  };
  /// k beside v, [rows, 2 * kv heads, dim], so that both travel in place.
  Array make_pair(DType type) const;
  TensorView keys_of(const Array& pair) const;
  TensorView values_of(const Array& pair) const;
  /// The tensors of a step's hull; keys and their gradients in pairs.
  AttentionTensors tensors_of(const Step& step, const AttentionTensors& tensors, const Array& keys,
                              const Array& gradients) const;
  /// Calls visit(step, its keys) for every step, while the keys of the next one travel.
  void for_steps(const AttentionTensors& tensors,
                 const std::function<void(std::size_t, const Array&)>& visit);
  std::size_t num_attends() const;

  BaselineParts parts_;
  std::int32_t rows_ = 0;
  comm::RowTable forward_, backward_;  ///< casts to the next member; sums that travel there
  comm::RowTable own_;                 ///< all rows, to put k beside v
  std::vector<Step> steps_;
};

/// Every member has all rows of all members for a share of the heads: one all-to-all carries q, k
/// and v there and one carries out back. `inner` attends to those rows and heads.
class Ulysses final : public RankAttention {
 public:
  /// members: ascending, this rank among them; rows: of each member.
  Ulysses(const BaselineParts& parts, std::vector<std::int32_t> members, std::int32_t rows,
          std::unique_ptr<RankAttention> inner);
  void forward(const AttentionTensors& tensors) override;
  void backward(const AttentionTensors& tensors) override;

 private:
  /// Tensors [rows, heads, dim] -> [rows of all members, share of all their heads, dim].
  Array to_heads(std::span<const TensorView> tensors);
  /// The reverse, into `tensors`.
  void to_rows(const TensorView& shares, std::span<const TensorView> tensors);
  /// Heads of the member's share of each tensor.
  std::vector<TensorView> share_of(std::span<const TensorView> tensors, std::int32_t member) const;
  std::int32_t num_members() const { return static_cast<std::int32_t>(members_.size()); }

  BaselineParts parts_;
  std::vector<std::int32_t> members_;
  std::int32_t rows_;
  std::unique_ptr<RankAttention> inner_;
  comm::RowTable all_rows_;
  /// Of the last forward, for its backward: q, k and v beside each other, out, lse.
  Array qkv_, out_, lse_;
};

/// All of `rows` rows as they lie, for copies between tensors and the wire.
comm::RowTable table_of_all(std::int32_t rows, const Link& link);

}  // namespace magi::cli
