// SPDX-License-Identifier: Apache-2.0
#include "runtime/arrival/arrival.hpp"

#include <memory>
#include <utility>

namespace magi::arrival {

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
      rows.filling, {.from = from, .to = to, .tag = call.tag_of(exchange)}, push, call.stream);
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

}  // namespace magi::arrival
