// SPDX-License-Identifier: Apache-2.0
#include "comm/engine/exchange.hpp"

#include <algorithm>
#include <cstring>

#include "base/words.hpp"
#include "comm/rows/exchange_kind.hpp"
#include "comm/rows/row_layout.hpp"

namespace magi::comm {

const char* kind_name(CallKind kind) {
  if (kind == CallKind::AllGather) return "allgather";
  if (kind == CallKind::Close) return "close";
  return kind_name(static_cast<ExchangeKind>(kind));
}

std::string describe(const Exchange& exchange) {
  std::string call =
      std::string(kind_name(exchange.kind)) + " " + std::to_string(exchange.sequence);
  if (exchange.is_gather()) return call;
  return "stage " + std::to_string(exchange.tag.stage) + " of " + call + ", plan " +
         hex(exchange.tag.plan_digest);
}

std::shared_ptr<Exchange> make_byte_exchange(std::int32_t rank, const ByteExchange& bytes) {
  auto exchange = std::make_shared<Exchange>();
  exchange->kind = call_kind(bytes.kind);
  exchange->tag = bytes.tag;
  exchange->content = bytes.content;
  const auto* send = static_cast<const std::byte*>(bytes.send);
  auto* receive = static_cast<std::byte*>(bytes.receive);
  for (std::size_t p = 0; p < bytes.send_bytes.size(); ++p) {
    const auto peer = static_cast<std::int32_t>(p);
    const auto sent = static_cast<std::uint64_t>(bytes.send_bytes[p]);
    const auto received = static_cast<std::uint64_t>(bytes.receive_bytes[p]);
    if (peer == rank) {
      if (sent > 0) std::memcpy(receive, send, sent);
    } else {
      if (sent > 0) exchange->sends.push_back({.peer = peer, .data = send, .total_bytes = sent});
      if (received > 0) {
        exchange->receives.push_back({.peer = peer, .data = receive, .total_bytes = received});
      }
    }
    send += sent;
    receive += received;
  }
  exchange->open_sends = exchange->sends.size();
  exchange->open_receives = exchange->receives.size();
  return exchange;
}

std::shared_ptr<Exchange> make_gather(std::int32_t rank, std::int32_t num_ranks, CallKind kind,
                                      std::span<const std::byte> bytes) {
  auto exchange = std::make_shared<Exchange>();
  exchange->kind = kind;
  exchange->gathered.resize(static_cast<std::size_t>(num_ranks));
  exchange->gathered[static_cast<std::size_t>(rank)].assign(bytes.begin(), bytes.end());
  for (std::int32_t peer = 0; peer < num_ranks; ++peer) {
    if (peer == rank) continue;
    exchange->sends.push_back({.peer = peer, .data = bytes.data(), .total_bytes = bytes.size()});
    exchange->receives.push_back({.peer = peer});
  }
  exchange->open_sends = exchange->sends.size();
  exchange->open_receives = exchange->receives.size();
  return exchange;
}

PacketHeader fill_packet(const Exchange& exchange, SendStream& stream, std::byte* payload,
                         std::size_t capacity) {
  const std::size_t count =
      std::min(capacity, static_cast<std::size_t>(stream.total_bytes - stream.sent_bytes));
  const PacketHeader header{.sequence = exchange.sequence,
                            .plan_digest = exchange.tag.plan_digest,
                            .content = exchange.content,
                            .total_bytes = stream.total_bytes,
                            .offset = stream.sent_bytes,
                            .options = exchange.tag.options,
                            .kind = exchange.kind,
                            .stage = exchange.tag.stage,
                            .payload_bytes = static_cast<std::uint32_t>(count)};
  if (count > 0) std::memcpy(payload, stream.data + stream.sent_bytes, count);
  stream.sent_bytes += count;
  stream.is_started = true;
  return header;
}

std::string open_stream(Exchange& exchange, ReceiveStream& stream, const PacketHeader& header) {
  stream.is_started = true;
  if (exchange.is_gather()) {
    std::vector<std::byte>& gathered = exchange.gathered[static_cast<std::size_t>(stream.peer)];
    gathered.resize(header.total_bytes);
    stream.data = gathered.data();
    stream.total_bytes = header.total_bytes;
    return "";
  }
  if (header.content != exchange.content) {
    return "sends rows of data types " + wire_types_text(header.content) + "; expected " +
           wire_types_text(exchange.content);
  }
  if (header.total_bytes == stream.total_bytes) return "";
  return "sends " + std::to_string(header.total_bytes) + " bytes; expected " +
         std::to_string(stream.total_bytes);
}

void accept_packet(ReceiveStream& stream, const PacketHeader& header, const std::byte* payload) {
  if (header.payload_bytes > 0) {
    std::memcpy(stream.data + stream.received_bytes, payload, header.payload_bytes);
  }
  stream.received_bytes += header.payload_bytes;
}

}  // namespace magi::comm
