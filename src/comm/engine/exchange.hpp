// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/engine/channel.hpp"
#include "comm/engine/layout.hpp"
#include "magi/comm.hpp"

namespace magi::comm {

/// Bytes on their way to one peer.
struct SendStream {
  std::int32_t peer = 0;
  const std::byte* data = nullptr;
  std::uint64_t total_bytes = 0;
  std::uint64_t sent_bytes = 0;
  bool is_started = false;  ///< the first packet is out
  bool done() const { return is_started && sent_bytes == total_bytes; }
};

/// Bytes on their way from one peer.
struct ReceiveStream {
  std::int32_t peer = 0;
  std::byte* data = nullptr;      ///< of a gather: known with the first packet
  std::uint64_t total_bytes = 0;  ///< likewise
  std::uint64_t received_bytes = 0;
  bool is_started = false;
  bool done() const { return is_started && received_bytes == total_bytes; }
};

/// One collective call of this rank, from its start until all its bytes came and went.
struct Exchange {
  std::uint64_t sequence = 0;
  CallKind kind = call_kind(ExchangeKind::Other);
  ExchangeTag tag;
  std::uint64_t content = 0;
  std::vector<SendStream> sends;                 ///< ascending by peer
  std::vector<ReceiveStream> receives;           ///< ascending by peer
  std::vector<std::vector<std::byte>> gathered;  ///< by rank, gathers only
  std::size_t open_sends = 0;
  std::size_t open_receives = 0;

  bool done() const { return open_sends == 0 && open_receives == 0; }
  bool is_gather() const { return kind == CallKind::AllGather || kind == CallKind::Close; }
};

/// "allgather", "group_cast", ...
const char* kind_name(CallKind kind);
/// "stage 3 of group_cast 17, plan 0x0123456789abcdef".
std::string describe(const Exchange& exchange);

/// An exchange of bytes in host memory; `sequence` is the caller's business. The own rank's part is
/// copied here.
std::shared_ptr<Exchange> make_byte_exchange(std::int32_t rank, const ByteExchange& bytes);
/// `bytes` must live until the exchange is done.
std::shared_ptr<Exchange> make_gather(std::int32_t rank, std::int32_t num_ranks, CallKind kind,
                                      std::span<const std::byte> bytes);

/// Fills the payload of the next packet of `stream`, at most `capacity` bytes, and its header.
PacketHeader fill_packet(const Exchange& exchange, SendStream& stream, std::byte* payload,
                         std::size_t capacity);
/// Checks the first header of a stream against what this rank expects; empty or what is wrong.
std::string open_stream(Exchange& exchange, ReceiveStream& stream, const PacketHeader& header);
/// Stores a packet's bytes.
void accept_packet(ReceiveStream& stream, const PacketHeader& header, const std::byte* payload);

}  // namespace magi::comm
