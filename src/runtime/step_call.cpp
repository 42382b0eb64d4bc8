// SPDX-License-Identifier: Apache-2.0
#include "runtime/step_call.hpp"

#include <algorithm>
#include <cmath>

#include "base/math.hpp"
#include "base/mix.hpp"
#include "comm/rows/call_options.hpp"
#include "runtime/tensors/device_calls.hpp"
#include "runtime/tensors/elements.hpp"

namespace magi {
namespace {

constexpr std::size_t kMaxMovedTogether = 2;  ///< tensors of one exchange of rows
constexpr std::int64_t kAlignment = 256;      ///< of their memory

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

std::int64_t row_elements(std::span<const TensorView> tensors) {
  std::int64_t elements = 0;
  for (const TensorView& t : tensors) elements += is_given(t) ? row_elements(t) : 0;
  return elements;
}

/// Tensors like those of `group`, of `num_rows` rows and, where given, another type. Neighbours of
/// one type share a buffer, whose rows hold theirs side by side, as rows travel, unless that would
/// break the alignment of rows: out and lse of one head, say.
template <typename Lend>
TensorGroup lend_like(const Lend& lend, TensorGroup group, std::int64_t num_rows, bool is_sum) {
  for (TensorView& tensor : group) {
    if (is_sum) tensor.dtype = accumulator_type(tensor.dtype);
    tensor.shape[0] = num_rows;
  }
  for (auto first = group.begin(); first != group.end();) {
    const auto is_other = [first](const TensorView& t) { return t.dtype != first->dtype; };
    auto end = std::find_if(first, group.end(), is_other);
    std::int64_t elements = row_elements(std::span<const TensorView>(first, end));
    if (static_cast<std::size_t>(elements) * dtype_bytes(first->dtype) % kRowAlignment != 0) {
      end = std::next(first);
      elements = is_given(*first) ? row_elements(*first) : 0;
    }
    TensorView part = lend(first->dtype, num_rows, elements);
    for (; first != end; ++first) {
      if (!is_given(*first)) continue;
      first->data = part.data;
      first->stride = {elements, row_elements(*first) / first->shape[1], 1};
      part = part.slice(1, row_elements(*first), part.shape[1]);
    }
  }
  return group;
}

double softmax_scale_of(const AttentionParams& params, std::int32_t head_dim) {
  return params.softmax_scale != 0.0 ? params.softmax_scale
                                     : 1.0 / std::sqrt(static_cast<double>(head_dim));
}

}  // namespace

TensorGroup heads_of(TensorGroup group, Range heads) {
  return slice_all(std::move(group), 1, heads);
}
TensorGroup rows_of(TensorGroup group, Range rows) { return slice_all(std::move(group), 0, rows); }
TensorView sink_of(const TensorView& sink, const RankSteps& steps, const AttendCall& call) {
  if (!is_given(sink)) return sink;
  const Range heads = steps.all_q_heads(call);
  const Range rows = steps.given_rows(call);
  const TensorView of_rows = sink.rank > 2 ? sink.slice(0, rows.begin, rows.end) : sink;
  return of_rows.slice(sink.rank - 1, heads.begin, heads.end);
}

StepCall::StepCall(const RankSteps& rank_steps, Pass pass, StepMemory& step_memory,
                   void* step_stream, const CallTrace& call_trace)
    : steps(rank_steps),
      memory(step_memory),
      stream(step_stream),
      trace(call_trace),
      pass_(pass),
      pass_steps_(pass == Pass::Forward ? steps.own.forward : steps.own.backward),
      pending_(pass_steps_.size()) {
  for (auto& groups : roles_) groups.resize(1 + steps.plan.exchanges.size());
}

StepCall::~StepCall() {
  pending_.clear();
  if (is_begun_) memory.end();
}

void StepCall::begin() {
  memory.begin(pass_, stream);
  is_begun_ = true;
}

void StepCall::set_options(const AttentionInputs& inputs, bool has_max_logits, bool has_dlse) {
  const TensorView& sink = inputs.sink;
  has_sink_ = is_given(sink);
  const auto moves_queries = [](const Exchange& exchange) {
    return exchange.role == Role::Queries;
  };
  const bool is_backward = pass_ == Pass::Backward;
  options_ = comm::pack_options(
      {.is_backward = is_backward,
       .type = inputs.q.dtype,
       .sink_axes = sink.rank,
       .num_sinks = sink.rank > 1 ? sink.shape[static_cast<std::size_t>(sink.rank) - 2] : 0,
       .has_max_logits = has_max_logits,
       // A rank whose queries stay is alone with its dlse.
       .has_dlse = has_dlse && std::ranges::any_of(steps.plan.exchanges, moves_queries),
       .is_fast_backward = is_backward && inputs.is_fast_backward,
       .are_partials_rounded = memory.are_partials_rounded(),
       .softmax_scale = softmax_scale_of(inputs.params, steps.plan.config.head_dim_qk),
       .softcap = inputs.params.softcap});
}

bool StepCall::is_whole(Role role) const {
  if (!is_returning(role) || !steps.returns_whole(space_of(role))) return false;
  return role != Role::Results || !has_sink_;
}

ExchangeKind StepCall::kind_of(Role role) const {
  if (!is_returning(role) || is_whole(role)) return ExchangeKind::Cast;
  return role == Role::Results ? ExchangeKind::LseMerge : ExchangeKind::Sum;
}

const comm::RowTable& StepCall::table_of(const Exchange& exchange) const {
  const SegmentRows& rows = steps.rows_of(exchange);
  if (!is_returning(exchange.role)) return rows.filling;
  return is_whole(exchange.role) ? rows.handed_back() : rows.returning();
}

comm::EveryonesRows StepCall::everyone_of(const Exchange& exchange) const {
  if (!is_whole(exchange.role)) return {};
  return [this, exchange] {
    auto all =
        steps.everyones_rows(space_of(exchange.role), static_cast<std::size_t>(exchange.segment));
    for (RowExchange& rows : all) std::swap(rows.owned, rows.needed);
    return all;
  };
}

comm::PassStart StepCall::make_pass_start() const {
  std::int64_t most_bytes = 0;
  for (const Step& step : pass_steps_) {
    if (step.kind != StepKind::Exchange) continue;
    const Exchange& exchange = steps.plan.exchanges[static_cast<std::size_t>(step.index)];
    const bool is_back = is_returning(exchange.role);
    const comm::RowTable& table = table_of(exchange);
    if (is_back) {
      // Results of moved queries go to the caller's tensors, which are not the exchanger's.
      memory.exchanger().prepare(table, {.kind = kind_of(exchange.role), .is_in_place = false},
                                 everyone_of(exchange));
    }
    const std::int64_t most_rows = memory.exchanger().most_rows(table, kind_of(exchange.role));
    for (const TensorView& tensor : tensors(exchange.role, -1, exchange.heads)) {
      if (!is_given(tensor)) continue;
      const DType type = is_back && !is_whole(exchange.role)
                             ? partial_type(exchange.role, accumulator_type(tensor.dtype))
                             : tensor.dtype;
      most_bytes +=
          align_up(most_rows * row_elements(tensor) * static_cast<std::int64_t>(dtype_bytes(type)),
                   kAlignment);
    }
  }
  const std::uint64_t digest =
      mix(mix(steps.plan.digest + static_cast<std::uint64_t>(pass_), options_),
          static_cast<std::uint64_t>(most_bytes));
  return {.most_bytes = most_bytes, .digest = digest, .is_first = memory.is_first_pass()};
}

void StepCall::prepare_pass() { pass_start_ = make_pass_start(); }

void StepCall::check_pass() { memory.exchanger().check_pass(pass_start_, stream); }

void StepCall::begin_pass() {
  memory.exchanger().begin_pass(pass_start_, stream);
  memory.set_passed();
}

TensorGroup StepCall::tensors(Role role, std::int32_t exchange, Range heads) const {
  const Range within = steps.heads_within(exchange, heads);
  return heads_of(roles_[static_cast<std::size_t>(role)][segment_of(exchange)],
                  space_of(role) == Space::Queries ? steps.q_heads(within) : within);
}

TensorGroup StepCall::tensors(Role role, const AttendCall& attend) const {
  const bool is_of_keys = space_of(role) == Space::Keys;
  return rows_of(tensors(role, is_of_keys ? attend.keys : attend.queries, attend.attend.heads),
                 is_of_keys ? attend.k_rows : attend.q_rows);
}

void StepCall::find_coming_keys(bool is_prepared) {
  if (!is_prepared || !memory.attends().takes_coming_keys()) return;
  for (const Step& step : pass_steps_) {
    if (step.kind != StepKind::Attend) continue;
    const Range calls = steps.calls_of[static_cast<std::size_t>(step.index)];
    if (calls.empty()) continue;
    const AttendCall& attend = steps.attends[static_cast<std::size_t>(calls.begin)];
    const std::int32_t keys = attend.keys;
    are_own_keys_read_ = pass_ == Pass::Forward && memory.attends().own_rows_of(attend) > 0;
    for (const std::int32_t before : step.after) {
      if (before < 0 || keys < 0) continue;
      const Step& exchange = pass_steps_[static_cast<std::size_t>(before)];
      if (exchange.kind == StepKind::Exchange && exchange.index == keys) coming_step_ = before;
    }
  }
}

std::optional<KeyArrivals> StepCall::key_arrivals() {
  if (coming_step_ < 0) return std::nullopt;
  constexpr std::int64_t kLeastPatience = 300'000;  // ns
  constexpr std::int64_t kBytesPerNs = 100;         // half of what links bring
  const auto step = static_cast<std::size_t>(coming_step_);
  comm::PendingRows& rows = *pending_[step].front();
  const comm::ArrivalWords words =
      rows.is_awaited_by_send() ? comm::ArrivalWords{} : rows.arrival_words();
  const Exchange& exchange =
      steps.plan.exchanges[static_cast<std::size_t>(pass_steps_[step].index)];
  std::int64_t row_bytes = 0;
  const TensorGroup own = tensors(exchange.role, -1, exchange.heads);
  for (const TensorView& tensor : own) {
    row_bytes += row_elements(tensor) * static_cast<std::int64_t>(dtype_bytes(tensor.dtype));
  }
  const std::int64_t bytes = steps.rows_of(exchange).num_rows * row_bytes;
  return KeyArrivals{.flags = words.flags,
                     .expected = words.expected,
                     .own_k = are_own_keys_read_ ? own[0] : TensorView{},
                     .own_v = are_own_keys_read_ ? own[1] : TensorView{},
                     .patience_ns = kLeastPatience + bytes / kBytesPerNs,
                     .start = is_deferred(step) ? [&rows](void* queue) { rows.send(queue); }
                                                : std::function<void(void*)>{},
                     .guard = [&rows](const AddressTable& places) { rows.guard(places); },
                     .await = [this, step](void* /*queue*/) { await(step); }};
}

void StepCall::guard_result(const TensorView& result) {
  const std::int64_t row = row_elements(result);
  if (coming_step_ < 0 || result.empty() || result.stride[0] != row) return;
  pending_[static_cast<std::size_t>(coming_step_)].front()->guard(
      static_cast<std::byte*>(result.data),
      result.shape[0] * row * static_cast<std::int64_t>(dtype_bytes(result.dtype)));
}

void StepCall::await_all() {
  for (std::size_t step = 0; step < pending_.size(); ++step) await(step);
}

bool StepCall::round_sums(Role role, const TensorGroup& targets) {
  comm::PendingRows* last = nullptr;
  if (is_whole(role)) return false;
  for (std::size_t step = 0; step < pass_steps_.size(); ++step) {
    if (pass_steps_[step].kind != StepKind::Exchange) continue;
    const auto index = static_cast<std::size_t>(pass_steps_[step].index);
    if (steps.plan.exchanges[index].role != role) continue;
    if (last != nullptr || pending_[step].size() != 1) return false;
    last = pending_[step].front().get();
  }
  return last != nullptr && last->round_into(targets);
}

void StepCall::await(std::size_t step) {
  if (pending_[step].empty()) return;
  trace.span(SpanKind::Await, static_cast<std::int64_t>(step), [&] {
    for (const auto& pending : pending_[step]) pending->await(stream);
    pending_[step].clear();
  });
}

void StepCall::exchange(const Step& step) {
  const Exchange& exchange = steps.plan.exchanges[static_cast<std::size_t>(step.index)];
  const TensorGroup own = tensors(exchange.role, -1, exchange.heads);
  if (is_returning(exchange.role)) {
    const std::int32_t filling =
        steps.filling_exchange(space_of(exchange.role), exchange.segment, exchange.heads);
    start(step, tensors(exchange.role, filling, exchange.heads), own);
    return;
  }
  lend_segment(exchange.role, step.index);
  for (const Role role : {Role::Results, Role::KeyGradients, Role::QueryGradients}) {
    if (space_of(role) == space_of(exchange.role)) lend_segment(role, step.index);
  }
  start(step, own, tensors(exchange.role, step.index, exchange.heads));
}

void StepCall::lend_segment(Role role, std::int32_t exchange) {
  std::vector<TensorGroup>& groups = groups_of(role);
  if (groups.front().empty()) return;  // no part of this pass
  const Exchange& filling = steps.plan.exchanges[static_cast<std::size_t>(exchange)];
  const SegmentRows& rows = steps.rows_of(filling);
  TensorGroup& segment = groups[segment_of(exchange)];
  const auto lend = [&](DType dtype, std::int64_t num_rows, std::int64_t elements) {
    if (role != filling.role) return memory.lend(dtype, {num_rows, elements});
    return memory.lend_landing(dtype, {num_rows, elements},
                               memory.exchanger().most_rows(rows.filling, ExchangeKind::Cast));
  };
  if (role == Role::KeyGradients && places_gradients(rows, exchange)) {
    placed_gradients_ = groups.front();
    groups.front() = lend_like(lend, tensors(role, -1, filling.heads),
                               rows.returning().sums().num_rows(), is_returning(role));
    // All rows of the segment have places elsewhere: of these tensors only shapes count.
    segment = groups.front();
    for (TensorView& tensor : segment) tensor.shape[0] = rows.num_rows;
    return;
  }
  segment = lend_like(lend, tensors(role, -1, filling.heads), rows.num_rows,
                      is_returning(role) && !is_whole(role));
  // Own rows have their sum where their first part is.
  if (is_returning(role) && !rows.own.empty()) groups.front() = rows_of(segment, rows.own);
}

bool StepCall::places_gradients(const SegmentRows& rows, std::int32_t exchange) const {
  if (pass_ != Pass::Backward || coming_step_ < 0) return false;
  if (pass_steps_[static_cast<std::size_t>(coming_step_)].index != exchange) return false;
  const comm::WireOrder& needed = rows.filling.needed;
  if (needed.num_rows + needed.num_own_rows != rows.num_rows) return false;  // rows without a part
  if (rows.own.empty() || rows.own.begin != 0) return false;
  const auto is_one = [this](const Step& step) {
    return step.kind == StepKind::Exchange &&
           steps.plan.exchanges[static_cast<std::size_t>(step.index)].role == Role::KeyGradients;
  };
  if (std::ranges::count_if(pass_steps_, is_one) != 1) return false;
  constexpr std::int64_t kUnit = 16;  // bytes that a kernel writes at once
  const auto group = [this](Role role) -> const TensorGroup& {
    return roles_[static_cast<std::size_t>(role)].front();
  };
  const DType type = group(Role::KeysValues).front().dtype;
  return std::ranges::all_of(group(Role::KeyGradients), [&](const TensorView& tensor) {
    const auto element = static_cast<std::int64_t>(dtype_bytes(type));
    const auto is_even = [&](std::int64_t stride) { return stride * element % kUnit == 0; };
    return tensor.dtype == type && element == 2 && tensor.stride[2] == 1 &&
           is_even(tensor.stride[0]) && is_even(tensor.stride[1]) &&
           reinterpret_cast<std::intptr_t>(tensor.data) % kUnit == 0;
  });
}

DType StepCall::partial_type(Role role, DType sum) const {
  if (role != Role::KeyGradients || !memory.are_partials_rounded()) return sum;
  return roles_[static_cast<std::size_t>(Role::KeysValues)].front().front().dtype;
}

void StepCall::round_partials(Role role, TensorGroup& partials) {
  const TensorGroup sums = partials;
  bool is_rounding = false;
  for (TensorView& partial : partials) {
    const DType type = partial_type(role, partial.dtype);
    is_rounding = is_rounding || (type != partial.dtype && !are_partials_written_);
    partial.dtype = type;
  }
  if (!is_rounding) return;
  const auto lend = [&](DType dtype, std::int64_t num_rows, std::int64_t elements) {
    return memory.lend(dtype, {num_rows, elements});
  };
  partials = lend_like(lend, partials, partials.front().shape[0], false);
  for (std::size_t i = 0; i < partials.size(); ++i) store(sums[i], partials[i]);
}

void StepCall::start(const Step& step, TensorGroup from, TensorGroup to) {
  const Exchange& exchange = steps.plan.exchanges[static_cast<std::size_t>(step.index)];
  const SegmentRows& rows = steps.rows_of(exchange);
  const auto is_missing = [](const TensorView& tensor) { return !is_given(tensor); };
  std::erase_if(from, is_missing);
  std::erase_if(to, is_missing);
  const bool is_sum = is_returning(exchange.role) && !is_whole(exchange.role);
  if (is_sum) round_partials(exchange.role, from);
  const auto index = static_cast<std::size_t>(&step - pass_steps_.data());
  const bool is_leaving_late = is_deferred(index);
  auto& pending = pending_[index];
  for (std::size_t first = 0, end = 0; first < from.size(); first = end) {
    while (end < from.size() && end < first + kMaxMovedTogether &&
           from[end].dtype == from[first].dtype) {
      ++end;
    }
    const bool is_cast = exchange.role == Role::KeysValues;
    const comm::RowMove move{
        .kind = kind_of(exchange.role),
        .from = std::span(from).subspan(first, end - first),
        .to = std::span(to).subspan(first, end - first),
        .tag = {.plan_digest = steps.plan.digest, .stage = exchange.stage, .options = options_},
        .num_sections =
            is_cast
                ? memory.exchanger().arrival_shape(rows.filling, exchange.heads.size()).num_sections
                : 1,
        .is_deferred = is_leaving_late,
        .is_without_own = is_cast && are_own_keys_read_ && is_leaving_late,
        .is_beside_attention = pass_ == Pass::Forward && is_leaving_late,
        .is_written = is_sum && are_partials_written_};
    pending.push_back(memory.exchanger().start(table_of(exchange), move, stream));
  }
}

TensorView StepCall::sum_for(const TensorView& target, bool is_added) {
  const DType wide = accumulator_type(target.dtype);
  if (!is_added || target.dtype == wide) return target;
  return memory.lend(wide, {target.shape[0], target.shape[1], target.shape[2]});
}

void StepCall::store(const TensorView& sum, const TensorView& target) {
  if (sum.data == target.data) return;
  if (target.device != kCpuDevice) return convert_device_elements(sum, target, stream);
  convert_elements(sum, target);
}

void StepCall::fill(const TensorView& target, double value) {
  if (target.device == kCpuDevice) return fill_elements(target, value);
  if (value == 0) return clear_device_elements(target, stream);
  fill_device_elements(target, value, stream);
}

}  // namespace magi
