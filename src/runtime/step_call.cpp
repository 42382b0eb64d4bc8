// SPDX-License-Identifier: Apache-2.0
#include "runtime/step_call.hpp"

#include <algorithm>
#include <cmath>

#include "base/math.hpp"
#include "base/mix.hpp"
#include "comm/rows/call_options.hpp"
#include "kernels/check/check_tensor.hpp"
#include "runtime/tensors/elements.hpp"

namespace magi {
namespace {

constexpr std::size_t kMaxMovedTogether = 2;  ///< tensors of one exchange of rows

std::int64_t row_elements(const TensorView& tensor) {
  return tensor.shape[1] * (tensor.rank > 2 ? tensor.shape[2] : 1);
}

TensorGroup slice_all(TensorGroup group, std::int32_t axis, Range range) {
  for (TensorView& tensor : group) {
    if (is_given(tensor)) tensor = tensor.slice(axis, range.begin, range.end);
  }
  return group;
}

/// Rows of a tensor that kernels load whole begin at multiples of so many bytes.
constexpr std::size_t kRowAlignment = 16;

std::uint64_t pack_options(const RankSteps& steps, const StepMemory& memory, const PassArgs& args) {
  const TensorView& sink = args.inputs.sink;
  const AttentionParams& params = args.inputs.params;
  const bool is_backward = args.pass == Pass::Backward;
  const auto moves_queries = [](const Exchange& exchange) {
    return exchange.role == Role::Queries;
  };
  return comm::pack_options(
      {.is_backward = is_backward,
       .type = args.inputs.q.dtype,
       .sink_axes = sink.rank,
       .num_sinks = sink.rank > 1 ? sink.shape[static_cast<std::size_t>(sink.rank) - 2] : 0,
       .has_max_logits = !is_backward && !args.result.max_logits.empty(),
       // A rank whose queries stay is alone with its dlse.
       .has_dlse = is_given(args.output_gradients.dlse) &&
                   std::ranges::any_of(steps.plan.exchanges, moves_queries),
       .is_fast_backward = is_backward && args.inputs.is_fast_backward,
       .are_partials_rounded = memory.are_partials_rounded(),
       .softmax_scale = params.softmax_scale != 0.0
                            ? params.softmax_scale
                            : 1.0 / std::sqrt(static_cast<double>(steps.plan.config.head_dim_qk)),
       .softcap = params.softcap});
}

}  // namespace

std::int64_t row_elements(std::span<const TensorView> tensors) {
  std::int64_t elements = 0;
  for (const TensorView& t : tensors) elements += is_given(t) ? row_elements(t) : 0;
  return elements;
}

void lay_side_by_side(std::span<TensorView> tensors, void* data) {
  const std::int64_t elements = row_elements(tensors);
  for (TensorView& t : tensors) {
    if (!is_given(t)) continue;
    t.data = data;
    t.stride = {elements, row_elements(t) / t.shape[1], 1};
    data = static_cast<std::byte*>(data) +
           row_elements(t) * static_cast<std::int64_t>(dtype_bytes(t.dtype));
  }
}

StepCall::StepCall(const RankSteps& rank_steps, StepMemory& step_memory, const PassArgs& pass_args,
                   void* step_stream, StepTrace& step_trace)
    : steps(rank_steps),
      memory(step_memory),
      args(pass_args),
      stream(step_stream),
      trace(step_trace),
      options_(pack_options(steps, memory, args)),
      list_(args.pass == Pass::Forward ? steps.own.forward : steps.own.backward),
      pending_(list_.size()) {
  for (auto& groups : roles_) groups.resize(1 + steps.plan.exchanges.size());
  const AttentionInputs& inputs = args.inputs;
  const AttentionResult& result = args.result;
  set_own(Role::KeysValues, {inputs.k, inputs.v});
  if (args.pass == Pass::Forward) {
    set_own(Role::Queries, {inputs.q});
    set_own(Role::Results, {result.out, result.lse});
    return;
  }
  const auto& [dout, dlse] = args.output_gradients;
  set_own(Role::Queries, {inputs.q, result.out, dout, result.lse, dlse});
  set_own(Role::QueryGradients, {args.input_gradients.dq});
  set_own(Role::KeyGradients, {args.input_gradients.dk, args.input_gradients.dv});
}

StepCall::~StepCall() {
  pending_.clear();
  if (is_begun_) memory.end();
}

void StepCall::begin() {
  memory.begin(args.pass, stream);
  is_begun_ = true;
}

bool StepCall::is_whole(Role role) const {
  if (!is_returning(role) || !steps.returns_whole(space_of(role))) return false;
  return role != Role::Results || !is_given(args.inputs.sink);
}

ExchangeKind StepCall::kind_of(Role role) const {
  if (!is_returning(role) || is_whole(role)) return ExchangeKind::Cast;
  return role == Role::Results ? ExchangeKind::LseMerge : ExchangeKind::Sum;
}

const comm::RowTable& StepCall::table_of(const Exchange& exchange) const {
  const SegmentRows& rows = steps.rows_of(exchange);
  if (!is_returning(exchange.role)) return rows.filling;
  return is_whole(exchange.role) ? rows.returned_rows() : rows.returning();
}

void StepCall::prepare_pass() {
  for (const Step& step : list_) {
    if (step.kind != StepKind::Exchange) continue;
    const Exchange& exchange = exchange_of(step);
    const comm::RowTable& table = table_of(exchange);
    if (is_returning(exchange.role)) {
      // Results of moved queries go to the caller's tensors, which are not the exchanger's.
      memory.exchanger().prepare(
          table, {.kind = kind_of(exchange.role), .is_in_place = false},
          steps.everyones_rows(space_of(exchange.role), exchange.segment, is_whole(exchange.role)));
    }
    if (memory.peers() == nullptr) continue;
    const std::int64_t most_rows = memory.peers()->most_rows(table, kind_of(exchange.role));
    pass_start_.most_bytes += bytes_of(exchange.role, exchange.heads, most_rows, true);
  }
  pass_start_.digest = mix(mix(steps.plan.digest + static_cast<std::uint64_t>(args.pass), options_),
                           static_cast<std::uint64_t>(pass_start_.most_bytes));
  pass_start_.is_first = memory.is_first_pass();
  pass_start_.is_saving = is_given(args.whole_out);
  if (memory.peers() != nullptr) memory.peers()->check_pass(pass_start_, stream);
}

DeviceWorkspace StepCall::begin_pass(std::int64_t workspace_bytes) {
  DeviceWorkspace workspace;
  if (workspace_bytes > 0) {
    workspace = {memory.lend(DType::Int64, {workspace_bytes / 8 + 1}).data, workspace_bytes};
  }
  if (memory.peers() != nullptr) memory.peers()->begin_pass(pass_start_, stream);
  memory.set_passed();
  return workspace;
}

TensorGroup StepCall::tensors(Role role, std::int32_t exchange, Range heads) const {
  // Of an exchange those are there that it brings.
  const std::int32_t first =
      exchange < 0 ? 0 : steps.plan.exchanges[static_cast<std::size_t>(exchange)].heads.begin;
  const Range within{heads.begin - first, heads.end - first};
  return slice_all(roles_[static_cast<std::size_t>(role)][segment_of(exchange)], 1,
                   space_of(role) == Space::Queries ? steps.q_heads(within) : within);
}

TensorGroup StepCall::tensors(Role role, const AttendCall& attend) const {
  const bool is_of_keys = space_of(role) == Space::Keys;
  return slice_all(tensors(role, is_of_keys ? attend.keys : attend.queries, attend.attend.heads), 0,
                   is_of_keys ? attend.k_rows : attend.q_rows);
}

TensorView StepCall::sink_of(const TensorView& sink, const AttendCall& attend) const {
  if (!is_given(sink)) return sink;
  const Range heads = steps.all_q_heads(attend);
  const std::int32_t first = attend.share * steps.shares.rows_per_share_q;
  const TensorView of_rows =
      sink.rank > 2 ? sink.slice(0, attend.q_rows.begin - first, attend.q_rows.end - first) : sink;
  return of_rows.slice(sink.rank - 1, heads.begin, heads.end);
}

void StepCall::await_all() {
  for (std::size_t step = 0; step < pending_.size(); ++step) await(step);
}

bool StepCall::round_sums(Role role, const TensorGroup& targets) {
  const auto is_of_role = [&](const Step& step) {
    return step.kind == StepKind::Exchange && exchange_of(step).role == role;
  };
  if (is_whole(role) || std::ranges::count_if(list_, is_of_role) != 1) return false;
  const auto& rows = pending_[place_of(*std::ranges::find_if(list_, is_of_role))];
  return rows.size() == 1 && rows.front()->round_into(targets);
}

void StepCall::await(std::size_t step) {
  if (pending_[step].empty()) return;
  trace.span(SpanKind::Await, static_cast<std::int64_t>(step), [&] {
    for (const auto& pending : pending_[step]) pending->await(stream);
    pending_[step].clear();
  });
}

void StepCall::exchange(const Step& step) {
  const Exchange& exchange = exchange_of(step);
  const TensorGroup own = tensors(exchange.role, -1, exchange.heads);
  if (is_returning(exchange.role)) {
    const std::int32_t filling =
        steps.filling_exchange(space_of(exchange.role), exchange.segment, exchange.heads);
    const TensorGroup from = tensors(exchange.role, filling, exchange.heads);
    return start(step, is_whole(exchange.role) ? from : rounded(exchange, from), own);
  }
  lend_segment(exchange.role, step.index);
  for (const Role role : {Role::Results, Role::KeyGradients, Role::QueryGradients}) {
    if (space_of(role) == space_of(exchange.role)) lend_segment(role, step.index);
  }
  start(step, own, tensors(exchange.role, step.index, exchange.heads));
}

TensorGroup StepCall::lend_like(TensorGroup group, std::int64_t num_rows, bool is_sum,
                                const comm::RowTable* casts) {
  for (TensorView& tensor : group) {
    if (is_sum) tensor.dtype = accumulator_type(tensor.dtype);
    tensor.shape[0] = num_rows;
  }
  for (auto first = group.begin(), end = first; first != group.end(); first = end) {
    const auto is_other = [first](const TensorView& t) { return t.dtype != first->dtype; };
    end = std::find_if(first, group.end(), is_other);
    std::int64_t elements = row_elements(std::span<const TensorView>(first, end));
    if (static_cast<std::size_t>(elements) * dtype_bytes(first->dtype) % kRowAlignment != 0) {
      end = std::next(first);
      elements = is_given(*first) ? row_elements(*first) : 0;
    }
    lay_side_by_side({first, end}, memory.lend(first->dtype, {num_rows, elements}, casts).data);
  }
  return group;
}

void StepCall::lend_segment(Role role, std::int32_t exchange) {
  std::vector<TensorGroup>& groups = groups_of(role);
  if (groups.front().empty()) return;  // no part of this pass
  const Exchange& filling = steps.plan.exchanges[static_cast<std::size_t>(exchange)];
  const SegmentRows& rows = steps.rows_of(filling);
  const TensorGroup own = tensors(role, -1, filling.heads);
  TensorGroup& segment = groups[segment_of(exchange)];
  const bool is_back = is_returning(role);
  begin_turn(role, filling.stage);
  segment = lend_like(own, rows.num_rows, is_back && !is_whole(role),
                      role == filling.role ? &rows.filling : nullptr);
  memory.end_turn();
  // Own rows have their sum where their first part is.
  if (is_back && !rows.own.empty()) groups.front() = slice_all(segment, 0, rows.own);
}

TensorGroup StepCall::as_partials(Role role, TensorGroup sums) const {
  for (TensorView& sum : sums) sum.dtype = partial_type(role, sum.dtype);
  return sums;
}

DType StepCall::partial_type(Role role, DType sum) const {
  if (role != Role::KeyGradients || !memory.are_partials_rounded()) return sum;
  return own(Role::KeysValues).front().dtype;
}

std::int64_t StepCall::bytes_of(Role role, Range heads, std::int64_t rows, bool is_rounded) const {
  const bool is_sum = is_returning(role) && !is_whole(role);
  std::int64_t bytes = 0;
  for (const TensorView& tensor : tensors(role, -1, heads)) {
    if (!is_given(tensor)) continue;
    DType type = is_sum ? accumulator_type(tensor.dtype) : tensor.dtype;
    if (is_rounded) type = partial_type(role, type);
    const auto element = static_cast<std::int64_t>(dtype_bytes(type));
    bytes += align_up(rows * row_elements(tensor) * element, kLentAlignment);
  }
  return bytes;
}

void StepCall::begin_turn(Role role, std::int32_t stage, bool is_rounded) {
  const std::int32_t num_turns = steps.plan.stages_in_flight;
  if (num_turns == 0) return;
  const std::int32_t turn = stage % num_turns;
  const std::int32_t place = (static_cast<std::int32_t>(role) * num_turns + turn) * 2 + is_rounded;
  memory.begin_turn(static_cast<std::size_t>(place), [&] {
    std::int64_t most = 0;
    for (const Exchange& exchange : steps.plan.exchanges) {
      if (is_returning(exchange.role) || exchange.stage % num_turns != turn) continue;
      const std::int32_t num_rows = steps.rows_of(exchange).num_rows;
      most = std::max(most, bytes_of(role, exchange.heads, num_rows, is_rounded));
    }
    return static_cast<std::size_t>(most);
  });
}

TensorGroup StepCall::rounded(const Exchange& exchange, TensorGroup sums) {
  const TensorGroup partials = as_partials(exchange.role, sums);
  if (std::ranges::equal(partials, sums, {}, &TensorView::dtype, &TensorView::dtype)) return sums;
  begin_turn(exchange.role, exchange.stage, true);
  TensorGroup result = lend_like(partials, partials.front().shape[0], false);
  memory.end_turn();
  for (std::size_t i = 0; i < sums.size(); ++i) store(sums[i], result[i]);
  return result;
}

void StepCall::start(const Step& step, TensorGroup from, TensorGroup to) {
  const Exchange& exchange = exchange_of(step);
  const auto is_missing = [](const TensorView& tensor) { return !is_given(tensor); };
  std::erase_if(from, is_missing);
  std::erase_if(to, is_missing);
  for (std::size_t first = 0, end = 0; first < from.size(); first = end) {
    while (end < from.size() && end < first + kMaxMovedTogether &&
           from[end].dtype == from[first].dtype) {
      ++end;
    }
    const comm::RowMove move{.kind = kind_of(exchange.role),
                             .from = std::span(from).subspan(first, end - first),
                             .to = std::span(to).subspan(first, end - first),
                             .tag = tag(exchange.stage)};
    add(step, memory.exchanger().start(table_of(exchange), move, stream));
  }
}

TensorView StepCall::sum_for(const TensorView& target, bool is_added) {
  const DType wide = accumulator_type(target.dtype);
  if (!is_added || target.dtype == wide) return target;
  return memory.lend(wide, {target.shape[0], target.shape[1], target.shape[2]});
}

void StepCall::store(const TensorView& sum, const TensorView& target) {
  if (sum.data != target.data) copy_elements(sum, target, stream);
}

ForwardArgs forward_args(StepCall& call, const AttendCall& attend, const TensorView& maxima) {
  const Attend& what = attend.attend;
  const TensorGroup keys = call.tensors(Role::KeysValues, attend);
  const TensorGroup results = call.tensors(Role::Results, attend);
  ForwardArgs args{.q = call.tensors(Role::Queries, attend)[0],
                   .k = keys[0],
                   .v = keys[1],
                   .slices = {},
                   .out = results[0],
                   .lse = results[1],
                   .is_merging = what.is_merging,
                   .params = call.args.inputs.params};
  if (attend.queries < 0 && !what.is_merging) {
    args.sink = call.sink_of(call.args.inputs.sink, attend);
  }
  if (!maxima.empty()) {
    const std::int64_t first = what.q_segment * call.args.result.max_logits.shape[0];
    const Range heads = call.steps.all_q_heads(attend);
    args.max_logits = maxima.slice(0, first + heads.begin, first + heads.end);
  }
  return args;
}

}  // namespace magi
