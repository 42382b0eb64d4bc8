// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/channel.hpp"
#include "comm/layout.hpp"
#include "comm/row_layout.hpp"
#include "comm/row_sink.hpp"
#include "magi/comm.hpp"

namespace magi::comm {

/// Rows on their way to one peer.
struct SendStream {
  std::int32_t peer = 0;
  RowCursor rows;
  std::uint64_t total_bytes = 0;
  std::uint64_t sent_bytes = 0;
  bool is_started = false;           ///< the first packet is out
  std::vector<std::byte> split_row;  ///< a row that is larger than a slot
  bool done() const { return is_started && sent_bytes == total_bytes; }
};

/// Rows on their way from one peer.
struct ReceiveStream {
  std::int32_t peer = 0;
  RowCursor rows;
  std::int64_t num_rows = 0;
  std::uint64_t total_bytes = 0;  ///< known with the first packet
  std::uint64_t received_bytes = 0;
  std::uint64_t wire_types = 0;
  std::size_t row_bytes = 0;
  bool is_started = false;
  std::vector<std::byte> split_row;
  bool done() const { return is_started && received_bytes == total_bytes; }
};

/// One collective call of this rank, from its start until all its rows came and went.
struct Exchange {
  std::uint64_t sequence = 0;
  ExchangeKind kind = ExchangeKind::Cast;
  ExchangeTag tag;
  std::uint64_t wire_types = 0;
  RowLayout source;
  std::vector<TensorView> outputs;
  std::vector<SendStream> sends;                 ///< ascending by peer
  std::vector<ReceiveStream> receives;           ///< ascending by peer; may hold the own rank
  std::unique_ptr<RowSink> sink;                 ///< not for gathers
  std::vector<std::vector<std::byte>> gathered;  ///< by rank, gathers only
  std::size_t turn = 0;                          ///< first of `receives` that is not done
  std::size_t open_sends = 0;
  std::size_t open_receives = 0;

  bool done() const { return open_sends == 0 && open_receives == 0; }
  bool is_reduce() const { return kind == ExchangeKind::Sum || kind == ExchangeKind::LseMerge; }
  bool is_gather() const { return kind == ExchangeKind::AllGather || kind == ExchangeKind::Close; }
};

/// "group_cast", ...
const char* kind_name(ExchangeKind kind);
/// "wave 3 of group_cast 17, plan 0x0123456789abcdef".
std::string describe(const Exchange& exchange);
std::string hex(std::uint64_t value);

/// An exchange of rows by its tables; `sequence` is the caller's business. Rows to and from the own
/// rank do not pass through a channel: a cast copies them here, a reduce in their turn.
std::shared_ptr<Exchange> make_cast(std::int32_t rank, std::span<const TensorView> inputs,
                                    std::span<const TensorView> outputs, const RowExchange& rows,
                                    ExchangeTag tag);
std::shared_ptr<Exchange> make_reduce(std::int32_t rank, std::span<const TensorView> inputs,
                                      std::span<const TensorView> outputs, const RowExchange& rows,
                                      ReduceOp op, ExchangeTag tag);
/// `bytes` must live until the exchange is done.
std::shared_ptr<Exchange> make_gather(std::int32_t rank, std::int32_t num_ranks, ExchangeKind kind,
                                      std::span<const std::byte> bytes);

/// Fills the payload of the next packet of `stream`, at most `capacity` bytes, and its header.
PacketHeader fill_packet(const Exchange& exchange, SendStream& stream, std::byte* payload,
                         std::size_t capacity);
/// Checks the first header of a stream against what this rank expects; empty or what is wrong.
std::string open_stream(Exchange& exchange, ReceiveStream& stream, const PacketHeader& header);
/// Hands a packet's rows to the sink.
void accept_packet(Exchange& exchange, ReceiveStream& stream, const PacketHeader& header,
                   const std::byte* payload);
/// Combines the own rank's partial rows in their turn.
void accept_own_rows(Exchange& exchange, ReceiveStream& stream);

}  // namespace magi::comm
