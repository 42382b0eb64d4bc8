// SPDX-License-Identifier: Apache-2.0
#include "runtime/backward_sums.hpp"

#include <algorithm>

#include "runtime/tensors/elements.hpp"

namespace magi {
namespace {

/// The places of a backward's tensors in the group of Role::Queries (see TensorGroup).
enum QueryTensor : std::uint8_t { kQ, kOut, kDout, kLse, kDlse };

}  // namespace

BackwardSums::BackwardSums(StepCall& call)
    : call_(call),
      dq_(call.own(Role::QueryGradients)[0]),
      dk_and_dv_(call.own(Role::KeyGradients)) {
  const std::vector<bool> none(static_cast<std::size_t>(call.steps.plan.config.num_heads_kv));
  written_heads_.resize(1 + call.steps.plan.exchanges.size(), none);
  const RankSteps& steps = call.steps;
  // Copied own keys have their sums in the segment that holds the copy. Attends of several shares
  // add to own keys that were cleared.
  const bool is_added = !steps.is_own_keys_copied() && !call_.is_whole(Role::KeyGradients) &&
                        (!steps.plan.exchanges.empty() || steps.shares.count > 1);
  const bool is_dq_added = steps.num_results > 1 && !call_.is_whole(Role::QueryGradients);
  call_.set_own(Role::QueryGradients, {call_.sum_for(dq_, is_dq_added)});
  call_.set_own(Role::KeyGradients,
                {call_.sum_for(dk_and_dv_[0], is_added), call_.sum_for(dk_and_dv_[1], is_added)});
}

void BackwardSums::clear_rest(std::int32_t exchange, Range heads) {
  std::vector<bool>& written_heads = written(exchange);
  for (std::int32_t begin = heads.begin, end = begin; begin < heads.end; begin = end) {
    const auto is_written = [&](std::int32_t h) {
      return written_heads[static_cast<std::size_t>(h)];
    };
    const bool are_written = is_written(begin);
    while (end < heads.end && is_written(end) == are_written) ++end;
    if (are_written) continue;
    for (const TensorView& sum : call_.tensors(Role::KeyGradients, exchange, {begin, end})) {
      clear_elements(sum, call_.stream);
    }
  }
  std::fill_n(written_heads.begin() + heads.begin, heads.size(), true);
}

bool BackwardSums::adds_to_keys(const AttendCall& attend) {
  if (attend.k_rows.empty()) return false;
  const Range heads = attend.attend.heads;
  if (attend.keys < 0 && call_.steps.shares.count > 1) clear_rest(-1, heads);
  const auto first = written(attend.keys).begin() + heads.begin;
  const bool is_adding = std::find(first, first + heads.size(), true) != first + heads.size();
  if (is_adding) clear_rest(attend.keys, heads);
  std::fill_n(first, heads.size(), true);
  return is_adding;
}

BackwardArgs BackwardSums::args_of(const AttendCall& attend) {
  const Attend& what = attend.attend;
  const TensorGroup queries = call_.tensors(Role::Queries, attend);
  const TensorView dq = call_.tensors(Role::QueryGradients, attend)[0];
  const TensorGroup keys = call_.tensors(Role::KeysValues, attend);
  const TensorGroup sums = call_.tensors(Role::KeyGradients, attend);
  const bool is_adding = adds_to_keys(attend);
  if (is_adding && !what.is_merging) clear_elements(dq, call_.stream);
  BackwardArgs args{.q = queries[kQ],
                    .k = keys[0],
                    .v = keys[1],
                    .slices = {},
                    .out = queries[kOut],
                    .lse = queries[kLse],
                    .dout = queries[kDout],
                    .dlse = queries[kDlse],
                    .dq = dq,
                    .dk = sums[0],
                    .dv = sums[1],
                    .is_accumulating = what.is_merging || is_adding,
                    .is_writing_keys = !is_adding,
                    .params = call_.args.inputs.params};
  const TensorView& dsink = call_.args.input_gradients.dsink;
  if (attend.queries < 0 && !what.is_merging && !dsink.empty()) {
    args.sink = call_.sink_of(call_.args.inputs.sink, attend);
    args.dsink = call_.sink_of(dsink, attend);
    if (is_adding) clear_elements(args.dsink, call_.stream);
    is_dsink_written_ = true;
  }
  return args;
}

void BackwardSums::complete(const Exchange& exchange) {
  const Range heads = exchange.heads;
  clear_rest(call_.steps.filling_exchange(Space::Keys, exchange.segment, heads), heads);
  clear_rest(-1, heads);
}

void BackwardSums::note_keys(const Exchange& exchange) {
  if (call_.steps.rows_of(exchange).own.empty()) return;
  std::fill_n(written(-1).begin() + exchange.heads.begin, exchange.heads.size(), true);
}

bool BackwardSums::store() {
  clear_rest(-1, {0, call_.steps.plan.config.num_heads_kv});
  const bool is_stored = call_.round_sums(Role::KeyGradients, dk_and_dv_);
  const bool is_dq_stored = call_.round_sums(Role::QueryGradients, {dq_});
  call_.await_all();
  if (!is_dq_stored) call_.store(call_.own(Role::QueryGradients)[0], dq_);
  if (!is_stored) {
    call_.store(call_.own(Role::KeyGradients)[0], dk_and_dv_[0]);
    call_.store(call_.own(Role::KeyGradients)[1], dk_and_dv_[1]);
  }
  const TensorView& dsink = call_.args.input_gradients.dsink;
  if (!dsink.empty() && !is_dsink_written_) clear_elements(dsink, call_.stream);
  return is_stored;
}

}  // namespace magi
