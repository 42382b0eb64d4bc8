// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

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
TensorGroup heads_of(TensorGroup group, Range heads);
TensorGroup rows_of(TensorGroup group, Range rows);
/// The heads, and rows where it has them, of a sink or of its gradient for a call of own queries,
/// if it is given.
TensorView sink_of(const TensorView& sink, const RankSteps& steps, const AttendCall& call);

/// One call of a pass: its tensors by role, the memory that it is lent, and its exchanges. A call
/// goes through these in order:
///   set_own, set_options  the caller's tensors (set_tensors below), or flat ones (FlatTensors)
///   prepare_pass          tables of rows, which one rank alone may have no memory for
///   check_pass            the last refusal; from here on rows move
///   begin                 memory of the call, until the call's end
///   walk                  the plan's steps, each behind those that it waits for
///   round_sums, await_all, store   what is left of exchanges and sums
/// NOTE: a call must outlive what aborts the group after an error: to drop an exchange under way
/// would end the group without the reason.
class StepCall {
 public:
  /// All arguments outlive the call.
  StepCall(const RankSteps& rank_steps, Pass pass, StepMemory& step_memory, void* step_stream,
           const CallTrace& call_trace);
  ~StepCall();
  StepCall(const StepCall&) = delete;
  StepCall& operator=(const StepCall&) = delete;

  /// Makes the tables that the pass's exchanges need. The own tensors of the roles that travel are
  /// set. It may run out of memory on one rank alone.
  void prepare_pass();
  /// Behind prepare_pass. Throws InvalidArgument, on all ranks alike and before anything is done,
  /// where the stream cannot begin the pass.
  void check_pass();
  /// Lends memory from here on, behind the work of the call's stream.
  void begin();
  void set_own(Role role, TensorGroup tensors) { groups_of(role).front() = std::move(tensors); }
  /// Whether what an exchange of this role returns is whole (RankSteps::returns_whole); of results
  /// only without sinks, which belong to the owner.
  bool is_whole(Role role) const;
  /// What ranks have to call alike besides the plan: it goes to transports that compare calls,
  /// which find ranks that differ.
  void set_options(const AttentionInputs& inputs, bool has_max_logits, bool has_dlse);
  std::uint64_t options() const { return options_; }
  const TensorGroup& own(Role role) const { return roles_[static_cast<std::size_t>(role)].front(); }
  /// The tensors of kv heads `heads`, or of the query heads that read them: own ones, or with the
  /// index of an exchange those of the segment that it fills.
  TensorGroup tensors(Role role, std::int32_t exchange, Range heads) const;
  /// Those of the heads and of the query or key rows of an attend.
  TensorGroup tensors(Role role, const AttendCall& attend) const;

  /// Walks the steps, each behind the exchanges that it waits for: calls exchange(step) or
  /// run(what is prepared for an attend, the attend, workspace). An attend that takes coming keys
  /// is behind nothing: it asks for key_arrivals().
  template <typename Prepared, typename RunAttend, typename StartExchange>
  void walk(const PreparedAttends<Prepared>& prepared, const RunAttend& run,
            const StartExchange& exchange);
  /// Where an attend finds out which keys have come, if it begins while they do.
  std::optional<KeyArrivals> key_arrivals();
  /// A result of that attend becomes NaN where the keys do not come.
  void guard_result(const TensorView& result);
  /// The type in which parts of a role's sums travel, which are of the accumulator's.
  DType partial_type(Role role, DType sum) const;
  /// Starts the exchange of a step. One that fills a segment lends the segment's tensors, and those
  /// of roles that go back from there.
  void exchange(const Step& step);
  /// The caller's gradients of own keys, where the attend that takes coming keys writes those that
  /// no other rank adds to into them at once. The own sums then have only the other rows, one
  /// behind the other. Else empty.
  const TensorGroup& placed_gradients() const { return placed_gradients_; }
  /// The partials of the next exchange that returns are at their owners.
  void set_partials_written() { are_partials_written_ = true; }
  void await_all();
  /// What is to go into `targets` is summed by one exchange at last, which rounds it into them;
  /// else false. Before await_all.
  bool round_sums(Role role, const TensorGroup& targets);

  /// What is summed for `target`: the target itself, or a tensor of the accumulator's type where
  /// parts are added and the target is narrower; store rounds it into the target.
  TensorView sum_for(const TensorView& target, bool is_added);
  void store(const TensorView& sum, const TensorView& target);
  /// Every element of `target` = value; on a GPU it has no gaps where the value is not 0.
  void fill(const TensorView& target, double value);
  const RankSteps& steps;
  StepMemory& memory;
  void* const stream;
  const CallTrace& trace;

 private:
  /// Readies the exchanges.
  void begin_pass();
  std::vector<TensorGroup>& groups_of(Role role) { return roles_[static_cast<std::size_t>(role)]; }
  comm::PassStart make_pass_start() const;
  void lend_segment(Role role, std::int32_t exchange);
  /// Whether the attend may write gradients of own keys into the caller's tensors.
  bool places_gradients(const SegmentRows& rows, std::int32_t exchange) const;
  /// The rows of an exchange and what becomes of them.
  const comm::RowTable& table_of(const Exchange& exchange) const;
  /// As each rank has them, of what is handed back.
  comm::EveryonesRows everyone_of(const Exchange& exchange) const;
  ExchangeKind kind_of(Role role) const;
  /// Gives partials the type in which they travel; their values too, unless they are written.
  void round_partials(Role role, TensorGroup& partials);
  void start(const Step& step, TensorGroup from, TensorGroup to);
  /// Whether the rows of an exchange leave when the attend asks for them, which runs beside.
  bool is_deferred(std::size_t step) const {
    return static_cast<std::int64_t>(step) == coming_step_;
  }
  /// Finds the exchange that brings the keys of the one attend while it runs.
  void find_coming_keys(bool is_prepared);
  void await(std::size_t step);

  Pass pass_;
  std::uint64_t options_ = 0;  ///< what set_options was given (comm::pack_options)
  comm::PassStart pass_start_;
  std::span<const Step> pass_steps_;                       ///< the rank's, of the pass
  std::array<std::vector<TensorGroup>, kNumRoles> roles_;  ///< own, then by exchange
  std::vector<std::vector<std::unique_ptr<comm::PendingRows>>> pending_;  ///< by step
  bool has_sink_ = false;
  bool is_begun_ = false;
  bool are_partials_written_ = false;
  std::int32_t coming_step_ = -1;   ///< exchange whose rows come while the attend runs
  bool are_own_keys_read_ = false;  ///< by that attend in the own tensors
  TensorGroup placed_gradients_;
};

template <typename Prepared, typename RunAttend, typename StartExchange>
void StepCall::walk(const PreparedAttends<Prepared>& prepared, const RunAttend& run,
                    const StartExchange& exchange) {
  std::int64_t size_bytes = 0;  // of the largest run
  for (const auto& attend : prepared) {
    if (attend != nullptr) size_bytes = std::max(size_bytes, attend->workspace_bytes());
  }
  DeviceWorkspace workspace;
  if (size_bytes > 0) {
    workspace = {memory.lend(DType::Int64, {size_bytes / 8 + 1}).data, size_bytes};
  }
  begin_pass();
  find_coming_keys(!prepared.empty() && prepared.front() != nullptr);
  for (const Step& step : pass_steps_) {
    for (const std::int32_t before : step.after) {
      if (before >= 0 && before != coming_step_) await(static_cast<std::size_t>(before));
    }
    const auto index = static_cast<std::size_t>(step.index);
    trace.span(SpanKind::Step, &step - pass_steps_.data(), [&] {
      if (step.kind == StepKind::Exchange) {
        exchange(step);
      } else {
        const Range calls = steps.calls_of[index];
        for (auto call = static_cast<std::size_t>(calls.begin);
             call < static_cast<std::size_t>(calls.end); ++call) {
          if (prepared[call] != nullptr) run(*prepared[call], steps.attends[call], workspace);
        }
      }
    });
  }
}

/// Sets the caller's tensors, before a call begins.
void set_tensors(StepCall& call, const AttentionInputs& inputs, const AttentionResult& result);
void set_tensors(StepCall& call, const AttentionInputs& inputs, const AttentionResult& result,
                 const OutputGradients& output_gradients, const InputGradients& input_gradients);

/// The calls of one pass, whose tensors are set: of `inputs` they read the sink and the parameters
/// alone. `prepared` fits the types of the tensors, which have been checked.
void run_forward(StepCall& call, const PreparedAttends<PreparedForward>& prepared,
                 const AttentionInputs& inputs, const TensorView& max_logits);
void run_backward(StepCall& call, const PreparedAttends<PreparedBackward>& prepared,
                  const AttentionInputs& inputs, const TensorView& dsink);

}  // namespace magi
