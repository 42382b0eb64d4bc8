// SPDX-License-Identifier: Apache-2.0
#include "runtime/arrival/arrival.hpp"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "comm/nvlink/peer_exchanger.hpp"
#include "runtime/backward_sums.hpp"

namespace magi::arrival {
namespace {

/// The steps of both passes by their place; the forward has the first two.
enum Place : std::uint8_t { kKeys, kAttend, kGradients };

/// Starts the exchange of the keys, which leave when they are pushed, and describes them to
/// attention: without flags where the push waits for them itself.
std::pair<comm::PendingKeys*, KeyArrivals> start_keys(StepCall& call, const comm::KeyPush& push) {
  constexpr std::int64_t kLeastSpinBudget = 300'000;  // ns
  constexpr std::int64_t kBytesPerNs = 100;           // half of what links bring
  const Step& step = call.list()[kKeys];
  const Exchange& exchange = call.exchange_of(step);
  const SegmentRows& rows = call.steps.rows_of(exchange);
  call.lend_segment(Role::KeysValues, step.index);
  const TensorGroup from = call.tensors(Role::KeysValues, -1, exchange.heads);
  const TensorGroup to = call.tensors(Role::KeysValues, step.index, exchange.heads);
  auto started = call.memory.peers()->start_keys(
      rows.filling, {.from = from, .to = to, .tag = call.tag(exchange.stage)}, push, call.stream);
  comm::PendingKeys* keys = started.get();
  call.add(step, std::move(started));
  const std::int64_t bytes =
      rows.num_rows * row_elements(from) * static_cast<std::int64_t>(dtype_bytes(from[0].dtype));
  KeyArrivals arrivals{.spin_budget_ns = kLeastSpinBudget + bytes / kBytesPerNs};
  if (keys->is_awaited_by_push()) return {keys, arrivals};
  const comm::ArrivalFlags words = keys->arrival_flags();
  arrivals.flags = words.flags;
  arrivals.expected = words.expected;
  arrivals.is_beside_push = true;
  return {keys, arrivals};
}

/// Lets the result become NaN where the keys do not come.
void guard_result(comm::PendingKeys& keys, const TensorView& out) {
  const std::int64_t row = out.shape[1] * out.shape[2];
  if (out.empty() || out.stride[0] != row) return;
  keys.guard_results(static_cast<std::byte*>(out.data),
                     out.shape[0] * row * static_cast<std::int64_t>(dtype_bytes(out.dtype)));
}

/// Whether attention may write gradients of own keys into the caller's tensors.
bool can_place_results(const StepCall& call, const SegmentRows& rows) {
  const comm::WireOrder& needed = rows.filling.needed;
  if (needed.num_rows + needed.num_own_rows != rows.num_rows) return false;  // rows without a part
  if (rows.own.empty()) return false;
  constexpr std::int64_t kUnit = 16;  // bytes that a kernel writes at once
  const DType type = call.own(Role::KeysValues).front().dtype;
  return std::ranges::all_of(call.own(Role::KeyGradients), [&](const TensorView& tensor) {
    const auto element = static_cast<std::int64_t>(dtype_bytes(type));
    const auto is_even = [&](std::int64_t stride) { return stride * element % kUnit == 0; };
    return tensor.dtype == type && element == 2 && tensor.stride[2] == 1 &&
           is_even(tensor.stride[0]) && is_even(tensor.stride[1]) &&
           reinterpret_cast<std::intptr_t>(tensor.data) % kUnit == 0;
  });
}

/// Lends what key gradients are summed in. Where attention may write gradients of own keys that no
/// other rank adds to into the caller's tensors, it returns these, and the own sums have only the
/// other rows, one after the other; else it returns none.
TensorGroup lend_gradients(StepCall& call, const AttendCall& attend) {
  const SegmentRows& rows = call.steps.rows_of_keys(attend);
  if (!can_place_results(call, rows)) {
    call.lend_segment(Role::KeyGradients, attend.keys);
    return {};
  }
  TensorGroup results = call.own(Role::KeyGradients);
  const TensorGroup sums = call.lend_like(call.tensors(Role::KeyGradients, -1, attend.attend.heads),
                                          rows.returning().sums().num_rows(), true);
  call.set_own(Role::KeyGradients, sums);
  // All rows of the segment have places elsewhere: of its tensors only shapes count.
  TensorGroup segment = sums;
  for (TensorView& tensor : segment) tensor.shape[0] = rows.num_rows;
  call.set_segment(Role::KeyGradients, attend.keys, segment);
  return results;
}

/// dk and dv from a row on.
PartGradients gradients_at(TensorGroup tensors, std::int32_t row) {
  for (TensorView& t : tensors) {
    t.data = static_cast<std::byte*>(t.data) +
             row * t.stride[0] * static_cast<std::int64_t>(dtype_bytes(t.dtype));
  }
  return {.dk = tensors[0], .dv = tensors[1]};
}

/// Finds where attention writes the key gradients of each part: those of other ranks straight to
/// them, own ones into `results` (lend_gradients), or into the segment where there are none.
std::vector<PartGradients> place_gradients(StepCall& call, const AttendCall& attend,
                                           const TensorGroup& results) {
  comm::PeerExchanger& peers = *call.memory.peers();
  const SegmentRows& rows = call.steps.rows_of_keys(attend);
  TensorGroup partials =
      call.as_partials(Role::KeyGradients, call.tensors(Role::KeyGradients, attend));
  const auto regions = peers.place_partials(rows.returning(), partials);
  const TensorGroup& sums = call.own(Role::KeyGradients);
  std::int32_t num_rows = 0, sum_row = 0;
  std::vector<PartGradients> gradients;
  for (const comm::NeededPart& part : peers.needed_parts(rows.filling)) {
    num_rows += part.num_rows;
    if (part.wire_row >= 0) {
      lay_side_by_side(partials, regions[static_cast<std::size_t>(part.source)]);
      gradients.push_back(gradients_at(partials, part.wire_row));
    } else if (results.empty()) {
      gradients.emplace_back();
    } else if (part.is_shared) {
      gradients.push_back(gradients_at(sums, std::exchange(sum_row, sum_row + part.num_rows)));
    } else {
      gradients.push_back(gradients_at(results, part.row));
    }
  }
  MAGI_CHECK(results.empty() || (num_rows == rows.num_rows && sum_row == sums[0].shape[0]));
  return gradients;
}

}  // namespace

void run_forward(StepCall& call) {
  const PreparedForward& attention = *call.memory.attends().forward(call.args).front();
  const AttendCall& attend = call.steps.attends.front();
  const bool reads_own_keys = !call.steps.rows_of_keys(attend).own.empty();
  const DeviceWorkspace workspace = call.begin_pass(attention.workspace_bytes());

  comm::PendingKeys* keys = nullptr;
  KeyArrivals arrivals;
  call.trace.span(SpanKind::Step, kKeys, [&] {
    std::tie(keys, arrivals) =
        start_keys(call, {.is_without_own = reads_own_keys, .is_beside_attention = true});
  });
  call.trace.span(SpanKind::Step, kAttend, [&] {
    const ForwardArgs args = forward_args(call, attend, call.args.result.max_logits);
    if (reads_own_keys) {
      const TensorGroup own = call.tensors(Role::KeysValues, -1, attend.attend.heads);
      arrivals.own_k = own[0];
      arrivals.own_v = own[1];
    }
    const TensorView& whole_out = call.args.whole_out;
    guard_result(*keys, whole_out.empty() ? args.out : whole_out);
    const auto run = attention.begin_in_flight(args, workspace, arrivals, call.stream);
    keys->push(call.stream);
    run->attend();
    call.await(kKeys);
    run->finish();
  });
}

void run_backward(StepCall& call) {
  const PreparedBackward& attention = *call.memory.attends().backward(call.args).front();
  const AttendCall& attend = call.steps.attends.front();
  BackwardSums sums(call);
  const DeviceWorkspace workspace = call.begin_pass(attention.workspace_bytes());

  comm::PendingKeys* keys = nullptr;
  KeyArrivals arrivals;
  TensorGroup results;
  call.trace.span(SpanKind::Step, kKeys, [&] {
    results = lend_gradients(call, attend);
    std::tie(keys, arrivals) = start_keys(call, {});
    sums.note_keys(call.exchange_of(call.list()[kKeys]));
  });
  call.trace.span(SpanKind::Step, kAttend, [&] {
    const BackwardArgs args = sums.args_of(attend);
    const auto gradients = place_gradients(call, attend, results);
    const auto run = attention.begin_in_flight(
        args, workspace, {.keys = arrivals, .gradients = gradients}, call.stream);
    keys->guard_places(run->places());
    // A push that waits for keys may turn the places into local ones: they are stored by then.
    const bool is_short = keys->is_awaited_by_push();
    if (!is_short) keys->push(call.stream);
    run->prepare();
    if (is_short) keys->push(call.stream);
    call.await(kKeys);
    run->attend();
    run->finish();
  });
  call.trace.span(SpanKind::Step, kGradients, [&] {
    const Step& step = call.list()[kGradients];
    sums.complete(call.exchange_of(step));
    call.start(step, call.as_partials(Role::KeyGradients, call.tensors(Role::KeyGradients, attend)),
               call.own(Role::KeyGradients));
  });
  const bool is_stored = sums.store();
  MAGI_CHECK(is_stored || results.empty());
}

}  // namespace magi::arrival
