// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "runtime/check_attention.hpp"
#include "runtime/prepared_attends.hpp"
#include "runtime/rank_steps.hpp"
#include "runtime/step_memory.hpp"
#include "runtime/step_trace.hpp"

namespace magi {

/// The place of the segment that an exchange fills; that of the own rows for -1.
inline std::size_t segment_of(std::int32_t exchange) {
  const std::int32_t segment = exchange + 1;
  return static_cast<std::size_t>(segment);
}

/// The tensors [rows, heads, ...] of one role, all of the same rows and heads. One that is not
/// given has rank 0. Their order, for readers that take one by its place:
///
/// | role           | forward  | backward                |
/// |----------------|----------|-------------------------|
/// | KeysValues     | k, v     | k, v                    |
/// | Queries        | q        | q, out, dout, lse, dlse |
/// | Results        | out, lse |                         |
/// | KeyGradients   |          | dk, dv                  |
/// | QueryGradients |          | dq                      |
///
/// Those of one type stand side by side, because such neighbours share a buffer and travel
/// together.
using TensorGroup = std::vector<TensorView>;
/// NOTE: a tensor of no rows may have no data and is given all the same.
inline bool is_given(const TensorView& tensor) { return tensor.rank > 0; }
/// Elements of a row of all of them.
std::int64_t row_elements(std::span<const TensorView> tensors);
/// Lets rows of tensors of one type lie side by side, as they travel, from `data` on.
void lay_side_by_side(std::span<TensorView> tensors, void* data);

/// One call of a pass: its tensors by role, the memory that it is lent, and its exchanges. A call
/// goes through these in order:
///   set_own          flat tensors (FlatTensors) instead of the caller's, or sums
///   prepare_pass     tables of rows, and the last refusal; from here on rows move
///   begin            memory of the call, until the call's end
///   begin_pass       rows may move
///   exchange, await  the plan's steps (walk/walk.hpp), or start (arrival/)
///   round_sums, await_all, store   what is left of exchanges and sums
/// NOTE: a call must outlive what aborts the group after an error: to drop an exchange under way
/// would end the group without the reason.
class StepCall {
 public:
  /// All arguments outlive the call, which notes its steps in `step_trace`.
  StepCall(const RankSteps& rank_steps, StepMemory& step_memory, const PassArgs& pass_args,
           void* step_stream, StepTrace& step_trace);
  ~StepCall();
  StepCall(const StepCall&) = delete;
  StepCall& operator=(const StepCall&) = delete;

  /// Makes the tables that the pass's exchanges need, for which one rank alone may have no memory.
  /// The own tensors of the roles that travel are set. Throws InvalidArgument, on all ranks alike,
  /// where the stream cannot begin the pass.
  void prepare_pass();
  /// Lends memory from here on, after the work of the call's stream.
  void begin();
  /// Lends workspace of the largest attend, which others use in turn (none where none needs any),
  /// and begins the pass of ranks that write each other's memory, if they do. After `begin`.
  DeviceWorkspace begin_pass(std::int64_t workspace_bytes);
  void set_own(Role role, TensorGroup tensors) { groups_of(role).front() = std::move(tensors); }
  /// Whether what an exchange of this role returns is whole (RankSteps::returns_whole); of results
  /// only without sinks, which belong to the owner.
  bool is_whole(Role role) const;
  const TensorGroup& own(Role role) const { return roles_[static_cast<std::size_t>(role)].front(); }
  /// The tensors of kv heads `heads`, or of the query heads that read them: own ones, or with the
  /// index of an exchange those of the segment that it fills.
  TensorGroup tensors(Role role, std::int32_t exchange, Range heads) const;
  /// Those of the heads and of the query or key rows of an attention call.
  TensorGroup tensors(Role role, const AttendCall& attend) const;
  /// The heads, and rows where it has them, of a sink or of its gradient for a call of own queries,
  /// if it is given.
  TensorView sink_of(const TensorView& sink, const AttendCall& attend) const;

  /// The rank's steps of the pass.
  std::span<const Step> list() const { return list_; }
  const Exchange& exchange_of(const Step& step) const {
    return steps.plan.exchanges[static_cast<std::size_t>(step.index)];
  }
  /// Lends the tensors of a segment that an exchange fills, or that its role's partials need.
  void lend_segment(Role role, std::int32_t exchange);
  /// Lends tensors like those of a group, of `num_rows` rows; sums are of the accumulator's type.
  /// Neighbours of one type share a buffer, whose rows hold theirs side by side, as rows travel,
  /// unless that would break the alignment of rows: out and lse of one head, say.
  TensorGroup lend_like(TensorGroup group, std::int64_t num_rows, bool is_sum,
                        const comm::RowTable* casts = nullptr);
  void set_segment(Role role, std::int32_t exchange, TensorGroup tensors) {
    groups_of(role)[segment_of(exchange)] = std::move(tensors);
  }
  /// Sums, which are of the accumulator's type, in the type in which parts of them travel.
  TensorGroup as_partials(Role role, TensorGroup sums) const;
  /// Starts the exchange of a step. One that fills a segment lends the segment's tensors, and those
  /// of roles that go back from there.
  void exchange(const Step& step);
  /// Starts the moves of a step's exchange between these tensors.
  void start(const Step& step, TensorGroup from, TensorGroup to);
  /// The values that ranks have to call alike, for transports that compare calls.
  ExchangeTag tag(std::int32_t stage) const {
    return {.plan_digest = steps.plan.digest, .stage = stage, .options = options_};
  }
  /// Keeps what an exchange of a step has started, until it is awaited.
  void add(const Step& step, std::unique_ptr<comm::PendingRows> rows) {
    pending_[place_of(step)].push_back(std::move(rows));
  }
  /// Awaits the exchange of the step in this place of the list; a second call does nothing.
  void await(std::size_t step);
  void await_all();
  /// Whether what goes into `targets` is summed by one exchange at last, which rounds it into them;
  /// else false. Before await_all.
  bool round_sums(Role role, const TensorGroup& targets);

  /// The sum for `target`: the target itself, or a tensor of the accumulator's type where
  /// parts are added and the target is narrower; store rounds it into the target.
  TensorView sum_for(const TensorView& target, bool is_added);
  void store(const TensorView& sum, const TensorView& target);

  const RankSteps& steps;
  StepMemory& memory;
  const PassArgs& args;
  void* const stream;
  StepTrace& trace;

 private:
  std::size_t place_of(const Step& step) const {
    return static_cast<std::size_t>(&step - list_.data());
  }
  std::vector<TensorGroup>& groups_of(Role role) { return roles_[static_cast<std::size_t>(role)]; }
  /// The rows of an exchange and what becomes of them.
  const comm::RowTable& table_of(const Exchange& exchange) const;
  ExchangeKind kind_of(Role role) const;
  /// Bytes of a segment's tensors of this role; rounded: in the type in which they travel.
  std::int64_t bytes_of(Role role, Range heads, std::int64_t rows, bool is_rounded) const;
  /// Lets what is lent next, up to memory.end_turn(), lie where a stage has its tensors of this
  /// role, if stages take turns in memory.
  void begin_turn(Role role, std::int32_t stage, bool is_rounded = false);
  DType partial_type(Role role, DType sum) const;
  /// The values of the sums that an exchange returns, in the type in which they travel.
  TensorGroup rounded(const Exchange& exchange, TensorGroup sums);

  std::uint64_t options_;  ///< comm::pack_options
  comm::PassStart pass_start_;
  std::span<const Step> list_;
  std::array<std::vector<TensorGroup>, kNumRoles> roles_;                 ///< own, then by exchange
  std::vector<std::vector<std::unique_ptr<comm::PendingRows>>> pending_;  ///< by step
  bool is_begun_ = false;
};

/// The tensors of an attention call of the forward, which is merged into what is there. The first
/// of the own queries brings the sink in. `maxima`: heads by query segment, or none.
ForwardArgs forward_args(StepCall& call, const AttendCall& attend, const TensorView& maxima);

}  // namespace magi
