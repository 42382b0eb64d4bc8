// SPDX-License-Identifier: Apache-2.0
#include "comm/exchange.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>
#include <utility>

namespace magi::comm {
namespace {

constexpr std::int64_t kAllRows = std::numeric_limits<std::int64_t>::max();

/// Records by peer in ascending order, each peer's in the order given, without the empty ones.
std::map<std::int32_t, std::vector<PeerRows>> by_peer(std::span<const PeerRows> records) {
  std::map<std::int32_t, std::vector<PeerRows>> groups;
  for (const PeerRows& record : records) {
    if (record.num_rows > 0) groups[record.peer].push_back(record);
  }
  return groups;
}

std::vector<PeerRows> records_of(std::span<const PeerRows> records, std::int32_t peer) {
  std::vector<PeerRows> own;
  std::copy_if(records.begin(), records.end(), std::back_inserter(own),
               [peer](const PeerRows& r) { return r.peer == peer && r.num_rows > 0; });
  return own;
}

void add_sends(Exchange& exchange, std::int32_t rank, std::span<const PeerRows> records) {
  if (exchange.source.row_bytes() == 0) return;
  for (auto& [peer, own] : by_peer(records)) {
    if (peer == rank) continue;
    const auto num_rows = static_cast<std::uint64_t>(count_rows(own));
    exchange.sends.push_back({.peer = peer,
                              .rows = RowCursor(std::move(own)),
                              .total_bytes = num_rows * exchange.source.row_bytes()});
  }
  exchange.open_sends = exchange.sends.size();
}

void add_receives(Exchange& exchange, std::span<const PeerRows> records) {
  if (RowLayout(exchange.outputs).row_bytes() == 0) return;
  for (auto& [peer, own] : by_peer(records)) {
    const std::int64_t num_rows = count_rows(own);
    exchange.receives.push_back(
        {.peer = peer, .rows = RowCursor(std::move(own)), .num_rows = num_rows});
  }
  exchange.open_receives = exchange.receives.size();
}

/// Rows that a rank casts to itself: read and write positions advance together.
void copy_own_rows(const Exchange& exchange, std::int32_t rank, const RowExchange& rows) {
  RowCursor from(records_of(rows.owned, rank));
  RowCursor to(records_of(rows.needed, rank));
  std::vector<std::byte> buffer;
  for (;;) {
    const RowCursor::Rows target = to.next(kAllRows);
    const RowCursor::Rows source = from.next(target.count);
    if (source.count == 0) return;
    buffer.resize(static_cast<std::size_t>(source.count) * exchange.source.row_bytes());
    exchange.source.pack(source.first, source.count, buffer.data());
    exchange.sink->put(exchange.wire_types, {.first = target.first, .count = source.count},
                       buffer.data());
    from.pass(source.count);
    to.pass(source.count);
  }
}

std::shared_ptr<Exchange> make_exchange(std::span<const TensorView> inputs,
                                        std::span<const TensorView> outputs, ExchangeTag tag) {
  auto exchange = std::make_shared<Exchange>();
  exchange->tag = tag;
  exchange->wire_types = encode_wire_types(inputs);
  exchange->source = RowLayout(inputs);
  exchange->outputs.assign(outputs.begin(), outputs.end());
  return exchange;
}

}  // namespace

const char* kind_name(ExchangeKind kind) {
  switch (kind) {
    case ExchangeKind::Cast:
      return "group_cast";
    case ExchangeKind::Sum:
      return "group_reduce(sum)";
    case ExchangeKind::LseMerge:
      return "group_reduce(lse_merge)";
    case ExchangeKind::AllGather:
      return "allgather";
    case ExchangeKind::Close:
      return "close";
  }
  return "an unknown call";
}

std::string hex(std::uint64_t value) {
  std::array<char, 16> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value, 16).ptr;
  const auto count = static_cast<std::size_t>(end - digits.data());
  return "0x" + std::string(digits.size() - count, '0') + std::string(digits.data(), count);
}

std::string describe(const Exchange& exchange) {
  std::string call =
      std::string(kind_name(exchange.kind)) + " " + std::to_string(exchange.sequence);
  if (exchange.is_gather()) return call;
  return "wave " + std::to_string(exchange.tag.wave) + " of " + call + ", plan " +
         hex(exchange.tag.plan_digest);
}

std::shared_ptr<Exchange> make_cast(std::int32_t rank, std::span<const TensorView> inputs,
                                    std::span<const TensorView> outputs, const RowExchange& rows,
                                    ExchangeTag tag) {
  auto exchange = make_exchange(inputs, outputs, tag);
  exchange->kind = ExchangeKind::Cast;
  exchange->sink = make_cast_sink(outputs);
  add_sends(*exchange, rank, rows.owned);
  add_receives(*exchange, rows.needed);
  const auto is_own = [rank](const ReceiveStream& stream) { return stream.peer == rank; };
  exchange->open_receives -= std::erase_if(exchange->receives, is_own);
  copy_own_rows(*exchange, rank, rows);
  return exchange;
}

std::shared_ptr<Exchange> make_reduce(std::int32_t rank, std::span<const TensorView> inputs,
                                      std::span<const TensorView> outputs, const RowExchange& rows,
                                      ReduceOp op, ExchangeTag tag) {
  auto exchange = make_exchange(inputs, outputs, tag);
  exchange->kind = op == ReduceOp::Sum ? ExchangeKind::Sum : ExchangeKind::LseMerge;
  exchange->sink = make_reduce_sink(outputs, rows.owned, op);
  add_sends(*exchange, rank, rows.needed);
  add_receives(*exchange, rows.owned);
  for (ReceiveStream& stream : exchange->receives) {
    if (stream.peer != rank) continue;
    // The partial rows of the own rank, packed now: the stream's records are positions in outputs.
    const std::vector<PeerRows> own = records_of(rows.needed, rank);
    for (const PeerRows& record : own) {
      const std::size_t begin = stream.split_row.size();
      const auto count = static_cast<std::size_t>(record.num_rows);
      stream.split_row.resize(begin + count * exchange->source.row_bytes());
      exchange->source.pack(record.row, record.num_rows, stream.split_row.data() + begin);
    }
  }
  return exchange;
}

std::shared_ptr<Exchange> make_gather(std::int32_t rank, std::int32_t num_ranks, ExchangeKind kind,
                                      std::span<const std::byte> bytes) {
  auto exchange = std::make_shared<Exchange>();
  exchange->kind = kind;
  exchange->source = RowLayout::of_bytes(const_cast<std::byte*>(bytes.data()));
  exchange->gathered.resize(static_cast<std::size_t>(num_ranks));
  exchange->gathered[static_cast<std::size_t>(rank)].assign(bytes.begin(), bytes.end());
  for (std::int32_t peer = 0; peer < num_ranks; ++peer) {
    if (peer == rank) continue;
    exchange->sends.push_back({.peer = peer, .total_bytes = bytes.size()});
    exchange->receives.push_back({.peer = peer});
  }
  exchange->open_sends = exchange->sends.size();
  exchange->open_receives = exchange->receives.size();
  return exchange;
}

namespace {

/// Whole rows as they fit, or a piece of one row that is larger than the slot.
std::size_t fill_rows(const Exchange& exchange, SendStream& stream, std::byte* payload,
                      std::size_t capacity) {
  const std::size_t row_bytes = exchange.source.row_bytes();
  if (row_bytes > capacity) {
    const std::size_t offset = stream.sent_bytes % row_bytes;
    if (offset == 0) {
      stream.split_row.resize(row_bytes);
      exchange.source.pack(stream.rows.next(1).first, 1, stream.split_row.data());
      stream.rows.pass(1);
    }
    const std::size_t count = std::min(capacity, row_bytes - offset);
    std::memcpy(payload, stream.split_row.data() + offset, count);
    return count;
  }
  std::size_t filled = 0;
  while (capacity - filled >= row_bytes) {
    const auto rows = stream.rows.next(static_cast<std::int64_t>((capacity - filled) / row_bytes));
    if (rows.count == 0) break;
    exchange.source.pack(rows.first, rows.count, payload + filled);
    stream.rows.pass(rows.count);
    filled += static_cast<std::size_t>(rows.count) * row_bytes;
  }
  return filled;
}

}  // namespace

PacketHeader fill_packet(const Exchange& exchange, SendStream& stream, std::byte* payload,
                         std::size_t capacity) {
  PacketHeader header{.sequence = exchange.sequence,
                      .plan_digest = exchange.tag.plan_digest,
                      .wire_types = exchange.wire_types,
                      .total_bytes = stream.total_bytes,
                      .offset = stream.sent_bytes,
                      .kind = exchange.kind,
                      .wave = exchange.tag.wave};
  std::size_t count = 0;
  if (exchange.is_gather()) {
    count = std::min(capacity, static_cast<std::size_t>(stream.total_bytes - stream.sent_bytes));
    if (count > 0) {
      exchange.source.pack(static_cast<std::int64_t>(stream.sent_bytes),
                           static_cast<std::int64_t>(count), payload);
    }
  } else {
    count = fill_rows(exchange, stream, payload, capacity);
  }
  header.payload_bytes = static_cast<std::uint32_t>(count);
  stream.sent_bytes += count;
  stream.is_started = true;
  return header;
}

std::string open_stream(Exchange& exchange, ReceiveStream& stream, const PacketHeader& header) {
  stream.is_started = true;
  stream.total_bytes = header.total_bytes;
  if (exchange.is_gather()) {
    exchange.gathered[static_cast<std::size_t>(stream.peer)].resize(header.total_bytes);
    return "";
  }
  stream.wire_types = header.wire_types;
  const std::string expected = exchange.sink->refuse(header.wire_types);
  if (!expected.empty()) return "sends rows of other data types; expected " + expected;
  stream.row_bytes = wire_row_bytes(exchange.outputs, header.wire_types);
  const std::uint64_t num_bytes = static_cast<std::uint64_t>(stream.num_rows) * stream.row_bytes;
  if (num_bytes == header.total_bytes) return "";
  return "sends " + std::to_string(header.total_bytes) + " bytes; expected " +
         std::to_string(num_bytes);
}

void accept_packet(Exchange& exchange, ReceiveStream& stream, const PacketHeader& header,
                   const std::byte* payload) {
  const std::size_t num_bytes = header.payload_bytes;
  if (exchange.is_gather()) {
    std::byte* target = exchange.gathered[static_cast<std::size_t>(stream.peer)].data();
    if (num_bytes > 0) std::memcpy(target + stream.received_bytes, payload, num_bytes);
  } else if (num_bytes < stream.row_bytes) {
    stream.split_row.insert(stream.split_row.end(), payload, payload + num_bytes);
    if (stream.split_row.size() == stream.row_bytes) {
      exchange.sink->put(stream.wire_types, stream.rows.next(1), stream.split_row.data());
      stream.rows.pass(1);
      stream.split_row.clear();
    }
  } else {
    for (std::size_t done = 0; done < num_bytes;) {
      const auto rows =
          stream.rows.next(static_cast<std::int64_t>((num_bytes - done) / stream.row_bytes));
      exchange.sink->put(stream.wire_types, rows, payload + done);
      stream.rows.pass(rows.count);
      done += static_cast<std::size_t>(rows.count) * stream.row_bytes;
    }
  }
  stream.received_bytes += num_bytes;
}

void accept_own_rows(Exchange& exchange, ReceiveStream& stream) {
  const std::vector<std::byte> packed = std::move(stream.split_row);
  stream.split_row.clear();
  stream.is_started = true;
  stream.wire_types = exchange.wire_types;
  stream.row_bytes = wire_row_bytes(exchange.outputs, exchange.wire_types);
  stream.total_bytes = packed.size();
  for (std::size_t done = 0; done < packed.size();) {
    const auto rows = stream.rows.next(kAllRows);
    exchange.sink->put(stream.wire_types, rows, packed.data() + done);
    stream.rows.pass(rows.count);
    done += static_cast<std::size_t>(rows.count) * stream.row_bytes;
  }
  stream.received_bytes = stream.total_bytes;
}

}  // namespace magi::comm
