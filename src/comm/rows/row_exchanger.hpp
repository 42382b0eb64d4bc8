// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/address_table.hpp"
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

/// How long a table's copy in device memory lives.
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
  /// What a reduce adds to owned rows. Made when it is first asked for: a cast never does.
  const SumTable& sums() const;

  /// The way of the same rows by node; null: none. Exchangers to which all ranks are equally near
  /// take no notice.
  std::shared_ptr<const NodeTables> by_node;

  TableLife life = TableLife::Kept;

  /// Of a reduce: partial rows on the wire of the rank that takes most, own ones that are no part
  /// of a sum yet among them. None: as many as the rows of a cast the other way.
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
  /// Equal parts of each row, heads by heads, that arrive one after the other; only exchangers that
  /// tell arrivals make more of it than one. The same on all ranks.
  std::int32_t num_sections = 1;
  /// The rows leave when PendingRows::send is called, and a kernel that waits for them itself may
  /// run beside what moves them. Only exchangers that tell arrivals do this.
  bool is_deferred = false;
  /// Rows that stay on this rank are not copied: who reads `to` has them elsewhere. Only exchangers
  /// that tell arrivals do this, in a cast.
  bool is_without_own = false;
  bool is_beside_attention = false;  ///< a deferred move leaves attention most multiprocessors
  /// The partials are at their owners already, see RowExchanger::place_partials.
  bool is_written = false;
};

/// How rows arrive where an exchanger tells that; no sources: it does not.
struct ArrivalShape {
  std::int32_t num_sources = 0;   ///< ranks, and places without one
  std::int32_t num_sections = 1;  ///< of the heads
  std::int32_t early_source = 0;  ///< the own rank: its rows are there at once
};

/// Rows of one rank among the needed ones.
struct NeededPart {
  std::int32_t row = 0;
  std::int32_t num_rows = 0;
  std::int32_t source = 0;
  std::int32_t wire_row = 0;  ///< of the owner, in a reduce; own rows have none: -1
  bool is_shared = false;     ///< own rows that other ranks need too
};

/// Device memory in which an exchanger tells which rows of a move have come.
struct ArrivalWords {
  const std::uint64_t* flags = nullptr;     ///< [sections, num_sources]
  const std::uint64_t* expected = nullptr;  ///< rows have come when their flag is *expected or more
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
  /// Lets the rows of a deferred move leave, behind what `stream` was given so far.
  virtual void send(void* /*stream*/) {}
  /// For a sum that is the last of its tensors: all rows of `to`, with what is added to them, go
  /// into `targets` and are rounded once, and `to` keeps what it holds. Called before the move is
  /// awaited. Where `to` has only the rows that something is added to, one behind the other, the
  /// other rows of `targets` are left as they are. False where the exchanger does not do this.
  virtual bool round_into(std::span<const TensorView> /*targets*/) { return false; }
  /// Memory without gaps of floating-point results that become NaN where the rows do not come.
  virtual void guard(std::byte* /*results*/, std::int64_t /*size_bytes*/) {}
  /// Where a kernel behind the wait for the rows stores others at peers (place_partials). If they
  /// do not come it stores them on this rank: nobody knows what lies at the peers then.
  virtual void guard(const AddressTable& /*places*/) {}
  /// Where kernels may see what has come, if the exchanger tells that.
  virtual ArrivalWords arrival_words() const { return {}; }
  /// Whether send awaits the rows that come as well, as there are few of them.
  virtual bool is_awaited_by_send() const { return false; }
};

/// Moves that a kept table is prepared for.
struct MoveUse {
  ExchangeKind kind = ExchangeKind::Cast;
  bool is_in_place = true;  ///< a cast's rows go to memory from `place`, where there is such
};

/// What an exchanger is for.
struct ExchangerUse {
  bool has_ways_by_node = false;  ///< some tables have RowTable::by_node
  bool has_passes = false;        ///< its moves are those of passes, with tables of plans
  std::int32_t beside_sms = 0;    ///< multiprocessors for moves while attention runs; 0: none runs
};

/// A pass to begin; equal on all ranks.
struct PassStart {
  std::int64_t most_bytes = 0;  ///< what it takes from `place` and for its moves' rows, at most
  std::uint64_t digest = 0;     ///< of the plan and the call
  bool is_first = false;  ///< of its plan: no row moves before all ranks have shown this digest
};

/// Carries out moves between tensors of one memory: the seam for transports. One that moves bytes
/// has the packed exchanger in front of it (make_row_exchanger); one that writes rows to their
/// final place, or goes by node over another one (make_hop_exchanger), are further implementations
/// of this class.
class RowExchanger {
 public:
  virtual ~RowExchanger() = default;
  /// Copies a kept table to where such moves read it, so that none of them waits for that. Local.
  /// Transports that write rows to their final place ask for `everyone`.
  virtual void prepare(const RowTable& table, const MoveUse& use,
                       const EveryonesRows& everyone) = 0;

  /// A pass: the moves of one call, between which memory from `place` lives. Collective. Only
  /// transports that write rows to their final place need passes.
  virtual void begin_pass(const PassStart& /*start*/, void* /*stream*/) {}
  /// Throws InvalidArgument, before anything is done, where `stream` cannot begin such a pass. All
  /// ranks do so if they call alike.
  virtual void check_pass(const PassStart& /*start*/, void* /*stream*/) const {}
  virtual void end_pass(void* /*stream*/) noexcept {}
  /// Whether passes follow each other, whatever their streams.
  virtual bool orders_passes() const { return false; }
  /// Memory where peers may write rows of a cast, at the same place on all ranks; null: any memory
  /// serves. Its size is that of the rank that needs most.
  virtual std::byte* place(std::int64_t /*most_bytes*/) { return nullptr; }
  /// How the needed rows of a table arrive, of `num_heads` heads; equal on all ranks.
  virtual ArrivalShape arrival_shape(const RowTable& /*table*/, std::int32_t /*num_heads*/) const {
    return {};
  }
  /// Whether there are such shapes.
  virtual bool tells_arrivals() const { return false; }
  /// Where needed rows come from and their partials go to, ascending by row; own rows in parts that
  /// are shared as a whole or not at all.
  virtual std::vector<NeededPart> needed_parts(const RowTable& /*table*/) const { return {}; }
  /// For a reduce of a pass whose partials the caller writes to their owners by itself: takes the
  /// memory of tensors [rows, ...] like `partials` at all owners, as the move would. Returns the
  /// first byte of wire row 0 by rank; a wire row is the concatenation of the tensors' rows. The
  /// move is started with `is_written` on the ranks that did so.
  virtual std::vector<std::byte*> place_partials(const RowTable& /*table*/,
                                                 std::span<const TensorView> /*partials*/) {
    return {};
  }
  /// Rows of the rank that needs most in a move of this kind; 0 where that does not matter.
  virtual std::int64_t most_rows(const RowTable& /*table*/, ExchangeKind /*kind*/) const {
    return 0;
  }

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
