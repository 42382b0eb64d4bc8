// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/address_table.hpp"
#include "magi/band.hpp"
#include "magi/tensor.hpp"

// Keys that other GPUs write in place while attention over them runs: what a schedule must know of
// them, and the flags by which a run sees that they have arrived.
namespace magi {

/// Rows of K and V that one source writes.
struct KeyPart {
  Range rows;
  std::int32_t source = 0;

  friend bool operator==(const KeyPart&, const KeyPart&) = default;
};

inline constexpr std::int32_t kMaxKeySources = 31;

/// The rows of K and V that arrive while a kernel runs. Rows of no part are present from the start.
/// The kv heads arrive in `num_sections` equal arrival chunks, one after the other.
struct InFlightKeys {
  std::vector<KeyPart> parts;     ///< ascending and disjoint, none empty
  std::int32_t num_sources = 0;   ///< up to kMaxKeySources
  std::int32_t num_sections = 1;  ///< divides the kv heads
  /// Bit s: keys of source s arrive at the very start. Items that wait only for such go first.
  std::uint32_t early_sources = 0;
  /// The expected arrival of the first chunk of the other sources, after the kernel's start. [ns]
  std::int64_t expected_ns = 0;
  /// The first rows of K and V, none of a part, lie in tensors of their own, which each run gets in
  /// KeyArrivals. 0: all rows are in K and V. Only the forward takes them: choosing between two
  /// descriptors costs the backward's kernel 2 to 4 % through its registers.
  std::int32_t own_rows = 0;
  /// The caller awaits the keys before the kernel; parts only say where their gradients go.
  bool is_awaited = false;

  bool empty() const { return parts.empty(); }
  std::int32_t heads_per_section(std::int32_t heads_kv) const { return heads_kv / num_sections; }

  friend bool operator==(const InFlightKeys&, const InFlightKeys&) = default;
};

/// Bit s: rows of source s are among `rows`.
std::uint32_t sources_of(const InFlightKeys& coming, Range rows);

/// Cuts slices at the end of the own rows.
std::vector<BandSlice> cut_at_own_rows(const InFlightKeys& coming,
                                       std::span<const BandSlice> slices);

/// Throws InvalidArgument naming what is not allowed for K and V of these rows and heads.
void check_in_flight_keys(const InFlightKeys& coming, std::int64_t rows_k, std::int64_t heads_kv);

inline constexpr std::int64_t kMaxSpinBudgetNs = 10'000'000'000;

/// The flags that tell a run which keys have arrived. Their memory outlives the run; a graph reads
/// it at every replay.
struct KeyArrivals {
  /// Device memory [num_sections, num_sources]. Other GPUs raise a flag at system scope after the
  /// rows that it stands for. If it and `expected` are null, all keys arrive before `attend`.
  const std::uint64_t* flags = nullptr;
  /// Device memory: rows have arrived if their flag is *expected or more. Fixed during a run.
  const std::uint64_t* expected = nullptr;
  /// K and V of the first InFlightKeys::own_rows rows; without data if there are none.
  TensorView own_k = {}, own_v = {};
  /// The total time that a multiprocessor waits before it defers items, up to
  /// kMaxSpinBudgetNs. [ns]
  std::int64_t spin_budget_ns = 0;
  /// The caller pushes keys right before the run's first kernel that takes flags. That kernel may
  /// run beside the push, but starts after all that was enqueued before the push.
  bool is_beside_push = false;
};

/// The place of the gradients of a part's keys if they do not go to dk and dv of the call, such as
/// memory of another GPU: sums over the queries of this call alone. Addresses and strides are
/// multiples of 16 bytes; the last dimension is contiguous.
struct PartGradients {
  /// The part's rows [rows, heads, dim], both float32 or both of the type of k. If both have no
  /// data, gradients go to those of the call.
  TensorView dk = {}, dv = {};
};

/// The flags of a backward over in-flight keys, and the places of its gradients.
struct BackwardArrivals {
  KeyArrivals keys;
  /// One for each part, or none. The host reads them while it enqueues the run; the memory that
  /// they point to is complete when the run has ended.
  std::span<const PartGradients> gradients;
};

/// A forward over in-flight keys. Each function enqueues its part on the run's stream, and the
/// caller enqueues its own work in between:
///   begin_in_flight, push, attend, a bounded wait for all keys, finish
/// The arguments of begin_in_flight outlive the object. Destroying it before finish gives the run
/// up: its results are undefined, but later runs on the stream are right.
class InFlightForward {
 public:
  virtual ~InFlightForward() = default;
  /// Computes the items whose keys arrive in time, and defers the others.
  virtual void attend() = 0;
  /// Computes the deferred items, and merges splits.
  virtual void finish() = 0;
};

/// A backward over in-flight keys, likewise:
///   begin_in_flight, push, prepare, a bounded wait for all keys, attend, finish
/// Without flags the push goes after `prepare` and waits for the keys. If tiles wait for their
/// keys (InFlightKeys::is_awaited is false and sums are in any order), the wait goes after
/// `attend`.
class InFlightBackward {
 public:
  virtual ~InFlightBackward() = default;
  /// The table of the places of part gradients, filled when `prepare` ends; empty if there are
  /// none. If keys do not arrive, the kernel that waits for them redirects places on other GPUs to
  /// local memory.
  virtual AddressTable places() const = 0;
  /// Computes all that needs no keys.
  virtual void prepare() = 0;
  virtual void attend() = 0;
  virtual void finish() = 0;
};

}  // namespace magi
