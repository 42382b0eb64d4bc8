// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "bench/distributed/baselines.hpp"

namespace magi::cli {
namespace {

std::size_t place_of(const std::vector<std::int32_t>& members, std::int32_t rank) {
  return static_cast<std::size_t>(std::ranges::find(members, rank) - members.begin());
}

/// All rows go to the next member, or in a sum's table are what the previous one's are added to.
comm::RowTable ring_table(const std::vector<std::int32_t>& members, std::int32_t rows,
                          const Link& link, bool is_sum) {
  const std::size_t own = place_of(members, link.rank());
  const std::size_t size = members.size();
  std::int32_t to = members[(own + 1) % size];
  std::int32_t from = members[(own + size - 1) % size];
  if (is_sum) std::swap(to, from);
  const RowExchange exchange{.owned = {{.peer = to, .row = 0, .num_rows = rows}},
                             .needed = {{.peer = from, .row = 0, .num_rows = rows}}};
  return {exchange, link.rank(), link.num_ranks()};
}

TensorView rows_of(const TensorView& tensor, Range rows) {
  return tensor.slice(0, rows.begin, rows.end);
}

}  // namespace

Ring::Ring(const BaselineParts& parts, const std::vector<std::int32_t>& members,
           const std::vector<Rows>& rows)
    : parts_(parts) {
  const std::size_t own = place_of(members, parts.link.rank());
  rows_ = count_rows(rows[own]);
  forward_ = ring_table(members, rows_, parts.link, false);
  backward_ = ring_table(members, rows_, parts.link, true);
  own_ = table_of_all(rows_, parts.link);
  for (std::size_t step = 0; step < members.size(); ++step) {
    const std::size_t owner = (own + members.size() - step) % members.size();
    const std::vector<BandSlice> slices = slices_between(parts.slices, rows[own], rows[owner]);
    Step& made = steps_.emplace_back();
    if (slices.empty() && step > 0) continue;
    // The first step takes all rows, so that it writes every result.
    made.hull = step == 0 ? Hull{{0, rows_}, {0, rows_}} : hull_of(slices);
    made.kernel = std::make_unique<KernelAttention>(parts.device, slices_inside(made.hull, slices));
  }
}

Array Ring::make_pair(DType type) const {
  return parts_.device.make(type, {rows_, 2 * parts_.shape.heads_kv, parts_.shape.head_dim});
}
TensorView Ring::keys_of(const Array& pair) const {
  return pair.view.slice(1, 0, parts_.shape.heads_kv);
}
TensorView Ring::values_of(const Array& pair) const {
  return pair.view.slice(1, parts_.shape.heads_kv, 2 * parts_.shape.heads_kv);
}

std::size_t Ring::num_attends() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(steps_, [](const Step& step) { return step.kernel != nullptr; }));
}

AttentionTensors Ring::tensors_of(const Step& step, const AttentionTensors& tensors,
                                  const Array& keys, const Array& gradients) const {
  const Hull& hull = step.hull;
  AttentionTensors call;
  call.q = rows_of(tensors.q, hull.q);
  call.k = rows_of(keys_of(keys), hull.k);
  call.v = rows_of(values_of(keys), hull.k);
  call.out = rows_of(tensors.out, hull.q);
  call.lse = rows_of(tensors.lse, hull.q);
  if (gradients.view.empty()) return call;
  call.dout = rows_of(tensors.dout, hull.q);
  call.dq = rows_of(tensors.dq, hull.q);
  call.dk = rows_of(keys_of(gradients), hull.k);
  call.dv = rows_of(values_of(gradients), hull.k);
  return call;
}

void Ring::for_steps(const AttentionTensors& tensors,
                     const std::function<void(std::size_t, const Array&)>& visit) {
  const DType type = parts_.device.type();
  Array here = make_pair(type);
  const TensorView own[] = {tensors.k, tensors.v};
  parts_.link.pack(own_, own, static_cast<std::byte*>(here.view.data));
  for (std::size_t step = 0; step < steps_.size(); ++step) {
    if (step + 1 == steps_.size()) return visit(step, here);
    Array next = make_pair(type);
    Transfer transfer =
        parts_.link.move(forward_, ExchangeKind::Cast, {&here.view, 1}, {&next.view, 1});
    visit(step, here);
    transfer.await();
    here = std::move(next);
  }
}

void Ring::forward(const AttentionTensors& tensors) {
  const bool merges = num_attends() > 1;
  Array sum;
  AttentionTensors call = tensors;
  if (merges) {
    sum = parts_.device.make(DType::Float32, {rows_, tensors.q.shape[1], parts_.shape.head_dim});
    call.out = sum;
  }
  for_steps(tensors, [&](std::size_t index, const Array& keys) {
    const Step& step = steps_[index];
    if (step.kernel != nullptr) step.kernel->attend(tensors_of(step, call, keys, {}), index > 0);
  });
  if (merges) parts_.device.convert(sum, tensors.out);
}

// The sums for the keys at hand are those that the previous member made for them one step earlier,
// which arrive while this step's kernel runs, and what that adds.
void Ring::backward(const AttentionTensors& tensors) {
  RankDevice& device = parts_.device;
  AttentionTensors call = tensors;
  const Array dq = device.make(DType::Float32, {rows_, tensors.q.shape[1], parts_.shape.head_dim});
  call.dq = dq;
  Array earlier;
  const auto is_whole = [&](const Step& step) {
    return step.kernel != nullptr && step.hull.k.size() == rows_;
  };
  for_steps(tensors, [&](std::size_t index, const Array& keys) {
    const Step& step = steps_[index];
    Array sums = make_pair(DType::Float32);
    if (!is_whole(step)) device.clear(sums);
    Transfer transfer(nullptr, nullptr);
    if (index > 0) {
      transfer =
          parts_.link.move(backward_, ExchangeKind::Sum, {&earlier.view, 1}, {&sums.view, 1});
    }
    if (step.kernel != nullptr) {
      step.kernel->add_gradients(tensors_of(step, call, keys, sums), index > 0);
    }
    transfer.await();
    earlier = std::move(sums);
  });
  const Array last = make_pair(DType::Float32);
  parts_.link.move(forward_, ExchangeKind::Cast, {&earlier.view, 1}, {&last.view, 1}).await();
  device.convert(dq, tensors.dq);
  device.convert(keys_of(last), tensors.dk);
  device.convert(values_of(last), tensors.dv);
}

}  // namespace magi::cli
