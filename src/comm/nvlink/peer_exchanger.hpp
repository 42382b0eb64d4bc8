// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/address_table.hpp"
#include "comm/rows/row_exchanger.hpp"

// What ranks can do that write each other's memory, beside moving rows as all exchangers do: passes
// whose memory lies alike on all ranks, keys that come while attention runs, and partials that
// attention itself writes to their owners. The executor uses it (src/runtime/arrival). No CUDA
// here: a build without it has the interface, and nobody who implements it.
namespace magi::comm {

class PeerLink;

/// A pass to begin; equal on all ranks.
struct PassStart {
  std::int64_t most_bytes = 0;  ///< what it takes from `place` and for its moves' rows, at most
  std::uint64_t digest = 0;     ///< of the plan and the call
  bool is_first = false;   ///< of its plan: no row moves before all ranks have shown this digest
  bool is_saving = false;  ///< memory is worth more to it than a wait for the peers as it begins
};

/// The way in which the keys of a table come.
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

/// Device memory that tells which rows of a move have come.
struct ArrivalFlags {
  const std::uint64_t* flags = nullptr;     ///< [sections, num_sources]
  const std::uint64_t* expected = nullptr;  ///< rows have come when their flag is *expected or more
};

/// Choices for keys that are pushed while attention runs.
struct KeyPush {
  bool is_without_own = false;  ///< rows that stay are not copied: attention reads the own ones
  bool is_beside_attention = false;  ///< leaves attention most multiprocessors
};

/// Keys that leave when `push` is called. A kernel that waits for their flags may run beside it.
class PendingKeys : public PendingRows {
 public:
  /// Lets the keys leave, after what `stream` was given so far.
  virtual void push(void* stream) = 0;
  /// Whether the push also waits for the keys that come, as there are few of them.
  virtual bool is_awaited_by_push() const = 0;
  /// The words in which kernels see what has come.
  virtual ArrivalFlags arrival_flags() const = 0;
  /// Names memory without gaps of floating-point results that become NaN if the keys do not come.
  virtual void guard_results(std::byte* results, std::int64_t size_bytes) = 0;
  /// Names the places at peers where a kernel after the wait stores rows (place_partials). If the
  /// keys do not come it stores them on this rank: nobody knows what lies at the peers then. Before
  /// the push.
  virtual void guard_places(const AddressTable& places) = 0;
};

/// An exchanger of ranks that write each other's memory. Rows go to their final place where the
/// caller took that from `place`, else through the window.
class PeerExchanger : public RowExchanger {
 public:
  /// Lets casts of this table bring the heads in the sections of arrival_shape; called alike on all
  /// ranks, after `prepare`.
  virtual void bring_in_sections(const RowTable& table) = 0;
  virtual ArrivalShape arrival_shape(const RowTable& table, std::int32_t num_heads) const = 0;
  /// Finds where needed rows come from and their partials go to, ascending by row; own rows in
  /// parts that are shared as a whole or not at all.
  virtual std::vector<NeededPart> needed_parts(const RowTable& table) const = 0;
  /// Rows of the rank that needs most in a move of this kind.
  virtual std::int64_t most_rows(const RowTable& table, ExchangeKind kind) const = 0;

  /// A pass: the moves of one call, between which memory from `place` lives. Passes follow each
  /// other, whatever their streams. Collective.
  virtual void begin_pass(const PassStart& start, void* stream) = 0;
  /// Throws InvalidArgument, before anything is done, where `stream` cannot begin such a pass. All
  /// ranks do so if they call alike.
  virtual void check_pass(const PassStart& start, void* stream) const = 0;
  virtual void end_pass(void* stream) noexcept = 0;
  /// Memory where peers write rows of a cast, at the same place on all ranks. Its size is that of
  /// the rank that needs most.
  virtual std::byte* place(std::int64_t most_bytes) = 0;

  /// Starts a cast whose rows leave when they are pushed. It stands in the order of moves.
  virtual std::unique_ptr<PendingKeys> start_keys(const RowTable& table, const RowMove& move,
                                                  const KeyPush& push, void* stream) = 0;
  /// Takes memory at all owners for partials like these tensors [rows, ...], as the pass's next
  /// move would, which is their reduce: the caller writes them there and the move sends none.
  /// Returns the first byte of wire row 0 by rank; a wire row is the concatenation of the tensors'
  /// rows.
  virtual std::vector<std::byte*> place_partials(const RowTable& table,
                                                 std::span<const TensorView> partials) = 0;
};

/// The exchanger as one of ranks that write each other's memory; null where it is none.
inline PeerExchanger* as_peer_exchanger(RowExchanger& exchanger) {
  return dynamic_cast<PeerExchanger*>(&exchanger);
}

/// Is told of every move: what it is for, and bytes by peer.
using CountMove = std::function<void(ExchangeKind, std::span<const std::int64_t>)>;

/// The exchanger over a link. What `count` refers to and the link's base group must outlive it.
std::unique_ptr<PeerExchanger> make_peer_exchanger(std::shared_ptr<PeerLink> link,
                                                   const DeviceAllocator& allocator,
                                                   std::int32_t beside_sms, CountMove count);

}  // namespace magi::comm
