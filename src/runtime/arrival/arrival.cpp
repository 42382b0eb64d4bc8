// SPDX-License-Identifier: Apache-2.0
#include "runtime/arrival/arrival.hpp"

#include <memory>
#include <utility>

namespace magi::arrival {

comm::PendingKeys& start_keys(StepCall& call, const comm::KeyPush& push) {
  const Step& step = call.list()[kKeys];
  const Exchange& exchange = call.exchange_of(step);
  const TensorGroup from = call.tensors(Role::KeysValues, -1, exchange.heads);
  const TensorGroup to = call.tensors(Role::KeysValues, step.index, exchange.heads);
  auto keys = call.memory.peers()->start_keys(
      call.steps.rows_of(exchange).filling, {.from = from, .to = to, .tag = call.tag_of(exchange)},
      push, call.stream);
  comm::PendingKeys& pending = *keys;
  call.add(step, std::move(keys));
  return pending;
}

KeyArrivals arrivals_of(const StepCall& call, const comm::PendingKeys& keys) {
  constexpr std::int64_t kLeastSpinBudget = 300'000;  // ns
  constexpr std::int64_t kBytesPerNs = 100;           // half of what links bring
  const Exchange& exchange = call.exchange_of(call.list()[kKeys]);
  std::int64_t row_bytes = 0;
  for (const TensorView& tensor : call.tensors(Role::KeysValues, -1, exchange.heads)) {
    row_bytes +=
        tensor.shape[1] * tensor.shape[2] * static_cast<std::int64_t>(dtype_bytes(tensor.dtype));
  }
  const std::int64_t bytes = call.steps.rows_of(exchange).num_rows * row_bytes;
  KeyArrivals arrivals{.spin_budget_ns = kLeastSpinBudget + bytes / kBytesPerNs};
  if (keys.is_awaited_by_push()) return arrivals;
  const comm::ArrivalFlags words = keys.arrival_flags();
  arrivals.flags = words.flags;
  arrivals.expected = words.expected;
  arrivals.is_beside_push = true;
  return arrivals;
}

}  // namespace magi::arrival
