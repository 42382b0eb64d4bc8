// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/address_table.hpp"
#include "magi/band.hpp"
#include "magi/tensor.hpp"

// Keys that other GPUs write to their place while attention over them runs: what a schedule must
// know of them, and where a run finds out what has come.
namespace magi {

/// Rows of K and V that one source writes.
struct KeyPart {
  Range rows;
  std::int32_t source = 0;

  friend bool operator==(const KeyPart&, const KeyPart&) = default;
};

inline constexpr std::int32_t kMaxKeySources = 31;

/// Which rows of K and V come while a kernel runs. Rows of no part are there from the start. The kv
/// heads come in `num_sections` equal arrival chunks, one after the other.
struct InFlightKeys {
  std::vector<KeyPart> parts;     ///< ascending and disjoint, none empty
  std::int32_t num_sources = 0;   ///< up to kMaxKeySources
  std::int32_t num_sections = 1;  ///< divides the kv heads
  /// Bit s: keys of source s come right at the start. Items that wait for such alone go first.
  std::uint32_t early_sources = 0;
  /// The time when the first section of the others is expected, from the kernel's start. [ns]
  std::int64_t expected_ns = 0;
  /// The first rows of K and V lie in tensors of their own, which each run is given (KeyArrivals);
  /// none of them is in a part. 0: all rows are in K and V. The forward alone takes them: to choose
  /// between two descriptors costs the backward's kernel 2 to 4 % through its registers.
  std::int32_t own_rows = 0;
  /// The keys are awaited before the kernel: parts only name the places of their gradients.
  bool is_awaited = false;

  bool empty() const { return parts.empty(); }
  std::int32_t heads_per_section(std::int32_t heads_kv) const { return heads_kv / num_sections; }

  friend bool operator==(const InFlightKeys&, const InFlightKeys&) = default;
};

/// Bit s: rows of source s are among `rows`.
std::uint32_t sources_of(const InFlightKeys& coming, Range rows);

/// Cuts slices where the own rows end.
std::vector<BandSlice> cut_at_own_rows(const InFlightKeys& coming,
                                       std::span<const BandSlice> slices);

/// Throws InvalidArgument naming what is not allowed for K and V of these rows and heads.
void check_in_flight_keys(const InFlightKeys& coming, std::int64_t rows_k, std::int64_t heads_kv);

inline constexpr std::int64_t kMaxSpinBudgetNs = 10'000'000'000;

/// The place where a run finds out what has come. The memory outlives the run; a graph reads it at
/// every replay.
struct KeyArrivals {
  /// Device memory [num_sections, num_sources]. Other GPUs raise a flag at system scope after the
  /// rows that it stands for. Null, like `expected`: all keys are there before `attend`.
  const std::uint64_t* flags = nullptr;
  /// Device memory: rows whose flag is *expected or more are there. Fixed while the run lasts.
  const std::uint64_t* expected = nullptr;
  /// K and V of the first InFlightKeys::own_rows rows; without data where there are none.
  TensorView own_k = {}, own_v = {};
  /// The time that a multiprocessor waits in all before it leaves items over, up to
  /// kMaxSpinBudgetNs. [ns]
  std::int64_t spin_budget_ns = 0;
  /// The caller pushes keys right before the run's first kernel that takes flags, which may run
  /// beside the push: that kernel starts after all that was enqueued before the push.
  bool is_beside_push = false;
};

/// The place where the gradients of a part's keys are written instead of dk and dv of the call,
/// such as memory of another GPU: sums over the queries of this call alone. Addresses and strides
/// are multiples of 16 bytes; the last dimension is contiguous.
struct PartGradients {
  /// The part's rows [rows, heads, dim], float32 or both of the type of k. Without data, both:
  /// those of the call.
  TensorView dk = {}, dv = {};
};

/// The news that a run of the backward gets of keys that come.
struct BackwardArrivals {
  KeyArrivals keys;
  /// One for each part, or none. They are read while the run is enqueued; what they point to is
  /// written when the run has ended.
  std::span<const PartGradients> gradients;
};

/// A forward over keys that come while it runs. Each function enqueues its part on the run's stream
/// and the caller's own work goes in between:
///   begin_in_flight, push, attend, a bounded wait for all keys, finish
/// What was given to begin_in_flight lives until the object is destroyed. To destroy it without
/// finish gives the run up: its results are undefined, later runs on the stream are right.
class InFlightForward {
 public:
  virtual ~InFlightForward() = default;
  /// Computes what has keys in time, and leaves over the rest.
  virtual void attend() = 0;
  /// Computes what was deferred, and merges pieces.
  virtual void finish() = 0;
};

/// Likewise of a backward:
///   begin_in_flight, push, prepare, a bounded wait for all keys, attend, finish
/// Without flags the push goes behind `prepare` and waits for the keys. Where tiles wait for their
/// keys (InFlightKeys::is_awaited is false and sums are in any order), the wait goes behind
/// `attend`.
class InFlightBackward {
 public:
  virtual ~InFlightBackward() = default;
  /// The table of the places of part gradients, which is filled when `prepare` ends; empty where
  /// there are none. Whoever waits for the keys turns places at other GPUs into local ones if they
  /// do not come.
  virtual AddressTable places() const = 0;
  /// Computes what needs no keys.
  virtual void prepare() = 0;
  virtual void attend() = 0;
  virtual void finish() = 0;
};

}  // namespace magi
