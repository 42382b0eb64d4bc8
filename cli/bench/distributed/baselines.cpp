// SPDX-License-Identifier: Apache-2.0
#include "bench/distributed/baselines.hpp"

#include <numeric>
#include <utility>

namespace magi::cli {
namespace {

/// Everyone's rows go to their places in the sequence on everyone.
comm::RowTable gather_table(const std::vector<Rows>& rows, const Link& link) {
  RowExchange exchange;
  const std::int32_t own = count_rows(rows[static_cast<std::size_t>(link.rank())]);
  for (std::int32_t peer = 0; peer < link.num_ranks(); ++peer) {
    exchange.owned.push_back({.peer = peer, .row = 0, .num_rows = own});
    for (const Range& range : rows[static_cast<std::size_t>(peer)]) {
      exchange.needed.push_back({.peer = peer, .row = range.begin, .num_rows = range.size()});
    }
  }
  return {exchange, link.rank(), link.num_ranks()};
}

}  // namespace

comm::RowTable table_of_all(std::int32_t rows, const Link& link) {
  const std::int32_t peer = (link.rank() + 1) % link.num_ranks();
  const RowExchange exchange{.owned = {{.peer = peer, .row = 0, .num_rows = rows}}, .needed = {}};
  return {exchange, link.rank(), link.num_ranks()};
}

AllGather::AllGather(const BaselineParts& parts, const std::vector<Rows>& rows)
    : parts_(parts),
      table_(gather_table(rows, parts.link)),
      kernel_(parts.device,
              slices_between(parts.slices, rows[static_cast<std::size_t>(parts.link.rank())],
                             {{0, parts.total}})) {}

Array AllGather::make_keys() {
  return parts_.device.make(parts_.device.type(),
                            {parts_.total, parts_.shape.heads_kv, parts_.shape.head_dim});
}

std::array<Array, 2> AllGather::gather(const AttentionTensors& tensors) {
  std::array<Array, 2> all{make_keys(), make_keys()};
  const TensorView from[] = {tensors.k, tensors.v};
  const TensorView to[] = {all[0], all[1]};
  parts_.link.move(table_, ExchangeKind::Cast, from, to).await();
  return all;
}

void AllGather::forward(const AttentionTensors& tensors) {
  const std::array<Array, 2> keys = gather(tensors);
  AttentionTensors call = tensors;
  call.k = keys[0];
  call.v = keys[1];
  kernel_.forward(call);
}

void AllGather::backward(const AttentionTensors& tensors) {
  const std::array<Array, 2> keys = gather(tensors);
  const std::array<Array, 2> gradients{make_keys(), make_keys()};
  AttentionTensors call = tensors;
  call.k = keys[0];
  call.v = keys[1];
  call.dk = gradients[0];
  call.dv = gradients[1];
  kernel_.backward(call);
  parts_.device.clear(tensors.dk);
  parts_.device.clear(tensors.dv);
  const TensorView from[] = {gradients[0], gradients[1]};
  const TensorView to[] = {tensors.dk, tensors.dv};
  parts_.link.move(table_, ExchangeKind::Sum, from, to).await();
}

Ulysses::Ulysses(const BaselineParts& parts, std::vector<std::int32_t> members, std::int32_t rows,
                 std::unique_ptr<RankAttention> inner)
    : parts_(parts),
      members_(std::move(members)),
      rows_(rows),
      inner_(std::move(inner)),
      all_rows_(table_of_all(rows, parts.link)) {}

std::vector<TensorView> Ulysses::share_of(std::span<const TensorView> tensors,
                                          std::int32_t member) const {
  std::vector<TensorView> shares;
  for (const TensorView& tensor : tensors) {
    const std::int64_t heads = tensor.shape[1] / num_members();
    shares.push_back(tensor.slice(1, member * heads, (member + 1) * heads));
  }
  return shares;
}

Array Ulysses::to_heads(std::span<const TensorView> tensors) {
  RankDevice& device = parts_.device;
  std::int64_t heads = 0;
  for (const TensorView& tensor : tensors) heads += tensor.shape[1] / num_members();
  const std::int64_t rows = std::int64_t{rows_} * num_members();
  const Array sent = device.make(device.type(), {rows, heads, parts_.shape.head_dim});
  for (std::int32_t member = 0; member < num_members(); ++member) {
    const TensorView part = sent.view.slice(0, member * rows_, (member + 1) * rows_);
    parts_.link.pack(all_rows_, share_of(tensors, member), static_cast<std::byte*>(part.data));
  }
  Array received = device.make(device.type(), {rows, heads, parts_.shape.head_dim});
  parts_.link.all_to_all(members_, sent, received);
  return received;
}

void Ulysses::to_rows(const TensorView& shares, std::span<const TensorView> tensors) {
  const Array received =
      parts_.device.make(shares.dtype, {shares.shape[0], shares.shape[1], parts_.shape.head_dim});
  parts_.link.all_to_all(members_, shares, received);
  for (std::int32_t member = 0; member < num_members(); ++member) {
    const TensorView part = received.view.slice(0, member * rows_, (member + 1) * rows_);
    parts_.link.unpack(all_rows_, static_cast<std::byte*>(part.data), share_of(tensors, member));
  }
}

namespace {

/// q, k and v that lie beside each other.
AttentionTensors split_heads(const TensorView& qkv, std::int64_t heads_q, std::int64_t heads_kv) {
  AttentionTensors tensors;
  tensors.q = qkv.slice(1, 0, heads_q);
  tensors.k = qkv.slice(1, heads_q, heads_q + heads_kv);
  tensors.v = qkv.slice(1, heads_q + heads_kv, heads_q + 2 * heads_kv);
  return tensors;
}

}  // namespace

void Ulysses::forward(const AttentionTensors& tensors) {
  RankDevice& device = parts_.device;
  const std::int64_t heads_q = parts_.shape.heads_q / num_members();
  const std::int64_t heads_kv = parts_.shape.heads_kv / num_members();
  const TensorView inputs[] = {tensors.q, tensors.k, tensors.v};
  qkv_ = to_heads(inputs);
  const std::int64_t rows = qkv_.view.shape[0];
  out_ = device.make(device.type(), {rows, heads_q, parts_.shape.head_dim});
  lse_ = device.make(DType::Float32, {rows, heads_q});
  AttentionTensors call = split_heads(qkv_, heads_q, heads_kv);
  call.out = out_;
  call.lse = lse_;
  inner_->forward(call);
  to_rows(out_, {&tensors.out, 1});
}

void Ulysses::backward(const AttentionTensors& tensors) {
  const std::int64_t heads_q = parts_.shape.heads_q / num_members();
  const std::int64_t heads_kv = parts_.shape.heads_kv / num_members();
  const Array dout = to_heads({&tensors.dout, 1});
  const Array gradients = parts_.device.make(
      parts_.device.type(), {qkv_.view.shape[0], heads_q + 2 * heads_kv, parts_.shape.head_dim});
  AttentionTensors call = split_heads(qkv_, heads_q, heads_kv);
  const AttentionTensors written = split_heads(gradients, heads_q, heads_kv);
  call.out = out_;
  call.lse = lse_;
  call.dout = dout;
  call.dq = written.q;
  call.dk = written.k;
  call.dv = written.v;
  inner_->backward(call);
  const TensorView results[] = {tensors.dq, tensors.dk, tensors.dv};
  to_rows(gradients, results);
  qkv_ = out_ = lse_ = {};
}

}  // namespace magi::cli
