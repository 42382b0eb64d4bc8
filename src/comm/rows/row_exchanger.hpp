// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/rows/wire_order.hpp"
#include "magi/comm.hpp"
#include "magi/device_allocator.hpp"
#include "magi/exchange.hpp"
#include "magi/tensor.hpp"

// Rows of tensors between ranks: a RowTable says who owns and who needs which rows, a RowMove names
// the tensors, and the rows are copied, added or merged where they are needed. Exchangers of rows
// stand above transports of bytes (Communicator, magi/comm.hpp), or are transports themselves.
// RowMemory (row_memory.hpp) is what differs between the host's memory and a GPU's. README.md names
// the files; read packed_exchanger.cpp next.
namespace magi::comm {

struct DeviceTables;
struct NodeTables;
struct PeerTables;

/// The lifetime of a table's copy in device memory lives.
enum class TableLife {
  Kept,     ///< as long as the table: made at the first move, which blocks
  OneMove,  ///< in the order of the one stream that the table's one move is started on
};

/// One rank's side of an exchange of rows, prepared once for any number of moves.
struct RowTable {
  RowTable() = default;
  /// Records whose peer is `rank` stay on this rank: owned and needed ones name as many rows.
  RowTable(const RowExchange& rows, std::int32_t rank, std::int32_t num_ranks,
           TableLife life = TableLife::Kept);

  RowExchange rows;
  WireOrder owned, needed;
  std::vector<RowTask> own;  ///< rows that stay: local_row is owned, wire_row the needed row
  /// The rows that a reduce adds to owned rows. Made when it is first asked for: a cast never does.
  const SumTable& sums() const;

  /// The way of the same rows by node; null: none. Exchangers to which all ranks are equally near
  /// take no notice.
  std::shared_ptr<const NodeTables> by_node;

  TableLife life = TableLife::Kept;

  /// The most partial rows of a reduce on the wire of the rank that takes most, own ones that are
  /// no part of a sum yet among them. None: as many as the rows of a cast the other way.
  std::optional<std::int64_t> most_partials;

  /// The copies by device, made by exchangers.
  mutable std::map<std::int32_t, std::shared_ptr<const DeviceTables>> on_device;
  mutable std::shared_ptr<const PeerTables> at_peers;

 private:
  mutable std::optional<SumTable> sums_;
};

/// Two legs that fill what one table would: rows go to the first reader of each node (and straight
/// to those of the owner's node), then on inside it. Both sides of `onward` are needed rows.
struct NodeTables {
  RowTable first;
  RowTable onward;
};

/// Gives an exchange as each rank has it, by rank.
using EveryonesRows = std::function<std::vector<RowExchange>()>;

/// Rows of tensors on their way. Cast and Other: owned rows of from[i] -> needed rows of to[i].
/// Sum: needed rows of from[i], the partials, are added to owned rows of to[i]. LseMerge: as Sum,
/// tensors come in pairs {out, lse}. Tensors are [rows, ...] in one memory; a row on the wire is
/// the concatenation of the tensors' rows.
struct RowMove {
  ExchangeKind kind = ExchangeKind::Cast;
  std::span<const TensorView> from, to;
  ExchangeTag tag;
};

/// A move under way. The table and the tensors' data must live until it is awaited or destroyed. To
/// destroy one that was not awaited gives its memory back behind the transport; in host memory it
/// ends the group, where the move is not complete.
class PendingRows {
 public:
  virtual ~PendingRows() = default;
  /// Host memory: blocks until the rows are in `to`. Device memory: work that `stream` (a
  /// cudaStream_t) is given later sees them there. Moves may be awaited in any order; a sum or
  /// merge first applies those started before it, which are then there on its stream. A second call
  /// does nothing.
  virtual void await(void* stream) = 0;
  /// Rounds a sum that is the last of its tensors: all rows of `to`, with what is added to them, go
  /// into `targets` and are rounded once, and `to` keeps what it holds. Called before the move is
  /// awaited. Where `to` has only the rows that something is added to, one after the other, the
  /// other rows of `targets` are left as they are. False where the exchanger does not do this.
  virtual bool round_into(std::span<const TensorView> /*targets*/) { return false; }
};

/// Moves that a kept table is prepared for.
struct MoveUse {
  ExchangeKind kind = ExchangeKind::Cast;
  bool is_in_place = true;  ///< a cast's rows go to memory from PeerExchanger::place, if there is
};

/// The purpose of an exchanger.
struct ExchangerUse {
  bool has_ways_by_node = false;  ///< some tables have RowTable::by_node
  bool has_passes = false;        ///< its moves are those of passes, with tables of plans
  std::int32_t beside_sms = 0;    ///< multiprocessors for moves while attention runs; 0: none runs
};

/// Carries out moves between tensors of one memory: the seam for transports. A transport of bytes
/// has the packed exchanger in front of it (make_row_exchanger), which may stand behind one that
/// goes by node (make_hop_exchanger). A transport that writes rows to their final place is an
/// exchanger itself, and does more than this class says (comm/nvlink/peer_exchanger.hpp).
class RowExchanger {
 public:
  virtual ~RowExchanger() = default;
  /// Copies a kept table to where such moves read it, so that none of them waits for that. Local.
  /// Transports that write rows to their final place ask for `everyone`.
  virtual void prepare(const RowTable& table, const MoveUse& use,
                       const EveryonesRows& everyone) = 0;

  /// Collective. Device memory: reads `from` and may write `to` behind what `stream` was given so
  /// far; nothing waits for the device but the first call with a table, which copies it there.
  virtual std::unique_ptr<PendingRows> start(const RowTable& table, const RowMove& move,
                                             void* stream) = 0;
  /// Whether moves may be captured in a graph, which all ranks then replay equally often.
  virtual bool is_capturable() const { return false; }
  /// The most bytes that moves under way took at a time.
  virtual std::int64_t largest_bytes() const = 0;
};

/// Packs rows into bytes for `communicator`, which must outlive the result, in host memory
/// (kCpuDevice) or on a GPU, where memory comes from `allocator` (empty: the library's pool), which
/// must outlive it too. Throws InvalidArgument for a GPU where the build has no CUDA or the group
/// moves no device memory.
std::unique_ptr<RowExchanger> make_row_exchanger(Communicator& communicator, std::int32_t device,
                                                 const DeviceAllocator& allocator,
                                                 const ExchangerUse& use = {});

/// Rows of tables with a way by node (RowTable::by_node) go in two legs over `straight`, those of
/// other tables in one. Moves are awaited in the order of the plan's steps; one that is started
/// waits for the first leg of the one before it. Partials are combined where they lie: a sum or
/// merge by node changes the rows of RowMove::from that this rank collects for its node.
std::unique_ptr<RowExchanger> make_hop_exchanger(Communicator& communicator,
                                                 std::unique_ptr<RowExchanger> straight);

/// Moves the rows of a table that stay on this rank, as a cast does, alone and at once (on a GPU
/// enqueued on `stream`).
void move_own_rows(const RowTable& table, const RowMove& move, void* stream);

/// values[i] = the largest of rows[r, i]: `rows` holds rows of as many elements as `values`
/// without gaps. Both are float32 or, in host memory, float64.
void maximise_rows(const TensorView& rows, const TensorView& values, void* stream);

/// The maximum over ranks of a small vector.
class RankMaximum {
 public:
  RankMaximum(std::int32_t rank, std::int32_t num_ranks);
  /// values[i] = the largest of the ranks' values[i]. `values` [count] is float32 or, in host
  /// memory, float64; `gathered` [num_ranks, count] is memory of the same kind. Collective.
  void apply(RowExchanger& exchanger, const TensorView& values, const TensorView& gathered,
             ExchangeTag tag, void* stream) const;

 private:
  RowTable table_;
};

}  // namespace magi::comm
