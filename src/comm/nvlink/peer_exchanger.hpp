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

// The interface of exchangers whose ranks write each other's memory. Beside moving rows like all
// exchangers, they have passes with the same memory layout on all ranks, keys that arrive while
// attention runs, and partials that attention itself writes to their owners. The executor uses it
// (src/runtime/arrival). It needs no CUDA: a build without CUDA has it without implementations.
namespace magi::comm {

class PeerLink;

/// A pass to begin; equal on all ranks.
struct PassStart {
  std::int64_t most_bytes = 0;  ///< bound of its bytes from `place` and for its moves' rows
  std::uint64_t digest = 0;     ///< digest of the plan and the call
  bool is_first = false;   ///< the plan's first pass: no row moves before all digests have arrived
  bool is_saving = false;  ///< prefers less memory to a begin without waits for the peers
};

/// The sources and arrival chunks of a table's keys.
struct ArrivalShape {
  std::int32_t num_sources = 0;   ///< ranks, and places without one
  std::int32_t num_sections = 1;  ///< arrival chunks of the heads
  std::int32_t early_source = 0;  ///< this rank, whose rows are ready at once
};

/// Needed rows that one rank owns.
struct NeededPart {
  std::int32_t row = 0;
  std::int32_t num_rows = 0;
  std::int32_t source = 0;
  std::int32_t wire_row = 0;  ///< wire row at the owner in a reduce; -1 for own rows
  bool is_shared = false;     ///< own rows that other ranks need too
};

/// Device memory that shows which rows of a move have arrived.
struct ArrivalFlags {
  const std::uint64_t* flags = nullptr;     ///< [sections, num_sources]
  const std::uint64_t* expected = nullptr;  ///< rows have arrived if their flag is >= *expected
};

/// Choices for keys that are pushed while attention runs.
struct KeyPush {
  bool is_without_own = false;       ///< own rows are not copied: attention reads the caller's
  bool is_beside_attention = false;  ///< leaves attention most multiprocessors
};

/// Keys that are sent when `push` is called. A kernel that waits for their flags may run beside it.
class PendingKeys : public PendingRows {
 public:
  /// Enqueues the push, after the earlier work of `stream`.
  virtual void push(void* stream) = 0;
  /// Whether the push also waits for the incoming keys, because they are few.
  virtual bool is_awaited_by_push() const = 0;
  /// The flags by which kernels see which keys have arrived.
  virtual ArrivalFlags arrival_flags() const = 0;
  /// Sets contiguous floating-point results that become NaN if the keys do not arrive.
  virtual void guard_results(std::byte* results, std::int64_t size_bytes) = 0;
  /// Sets the places at peers where a kernel after the wait stores rows (place_partials). If the
  /// keys do not arrive, it stores them on this rank, because peers may use that memory otherwise
  /// by then. Call it before the push.
  virtual void guard_places(const AddressTable& places) = 0;
};

/// An exchanger of ranks that write each other's memory. Rows go to their final place if the caller
/// got that from `place`, else through the window.
class PeerExchanger : public RowExchanger {
 public:
  /// Makes casts of this table arrive in sections. All ranks call it alike, after `prepare`.
  virtual void bring_in_sections(const RowTable& table) = 0;
  virtual ArrivalShape arrival_shape(const RowTable& table, std::int32_t num_heads) const = 0;
  /// Returns the sources of needed rows and the places of their partials, ascending by row. Parts
  /// of own rows are shared completely or not at all.
  virtual std::vector<NeededPart> needed_parts(const RowTable& table) const = 0;
  /// The most rows that a rank needs in a move of this kind.
  virtual std::int64_t most_rows(const RowTable& table, ExchangeKind kind) const = 0;

  /// Begins a pass: the moves of one call, during which memory from `place` is valid. Passes follow
  /// each other, whatever their streams. Collective.
  virtual void begin_pass(const PassStart& start, void* stream) = 0;
  /// Throws InvalidArgument if `stream` cannot begin such a pass, before it changes anything. All
  /// ranks throw if they call alike.
  virtual void check_pass(const PassStart& start, void* stream) const = 0;
  virtual void end_pass(void* stream) noexcept = 0;
  /// Returns memory where peers write rows of a cast, at the same place on all ranks. `most_bytes`:
  /// the size on the rank that needs most.
  virtual std::byte* place(std::int64_t most_bytes) = 0;

  /// Starts a cast whose rows are sent by a later push. It counts in the order of moves at once.
  virtual std::unique_ptr<PendingKeys> start_keys(const RowTable& table, const RowMove& move,
                                                  const KeyPush& push, void* stream) = 0;
  /// Reserves memory at all owners for partials like these tensors [rows, ...], for the pass's next
  /// move, their reduce: the caller writes them there, and the move sends nothing. Returns the
  /// address of wire row 0 by rank; a wire row concatenates the tensors' rows.
  virtual std::vector<std::byte*> place_partials(const RowTable& table,
                                                 std::span<const TensorView> partials) = 0;
};

/// Returns the exchanger as a PeerExchanger, or null.
inline PeerExchanger* as_peer_exchanger(RowExchanger& exchanger) {
  return dynamic_cast<PeerExchanger*>(&exchanger);
}

/// A function that is called for every move, with its kind and bytes by peer.
using CountMove = std::function<void(ExchangeKind, std::span<const std::int64_t>)>;

/// Makes the exchanger over a link. The data of `count` and the link's base group must outlive it.
std::unique_ptr<PeerExchanger> make_peer_exchanger(std::shared_ptr<PeerLink> link,
                                                   const DeviceAllocator& allocator,
                                                   std::int32_t beside_sms, CountMove count);

}  // namespace magi::comm
