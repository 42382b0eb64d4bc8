// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
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
/// heads come in `num_sections` equal arrival sections, one after the other.
struct ComingKeys {
  std::vector<KeyPart> parts;     ///< ascending and disjoint, none empty
  std::int32_t num_sources = 0;   ///< up to kMaxKeySources
  std::int32_t num_sections = 1;  ///< divides the kv heads
  /// Bit s: keys of source s come right at the start. Items that wait for such alone go first.
  std::uint32_t early_sources = 0;
  /// When the first section of the others is expected, from the kernel's start. [ns]
  std::int64_t expected_ns = 0;
  /// The first rows of K and V lie in tensors of their own, which each run is given (KeyArrivals);
  /// none of them is in a part. 0: all rows are in K and V. The forward alone takes them: to choose
  /// between two descriptors costs the backward's kernel 2 to 4 % through its registers.
  std::int32_t own_rows = 0;
  /// The keys are awaited before the kernel: parts only name the places of their gradients.
  bool is_awaited = false;

  bool empty() const { return parts.empty(); }
  std::int32_t heads_per_section(std::int32_t heads_kv) const { return heads_kv / num_sections; }

  friend bool operator==(const ComingKeys&, const ComingKeys&) = default;
};

/// Bit s: rows of source s are among `rows`.
std::uint32_t sources_of(const ComingKeys& coming, Range rows);

/// Cuts slices where the own rows end.
std::vector<BandSlice> cut_at_own_rows(const ComingKeys& coming, std::span<const BandSlice> slices);

/// Throws InvalidArgument naming what is not allowed for K and V of these rows and heads.
void check_coming_keys(const ComingKeys& coming, std::int64_t rows_k, std::int64_t heads_kv);

inline constexpr std::int64_t kMaxPatienceNs = 10'000'000'000;

/// Where a run finds out what has come. The memory outlives the run; a graph reads it at every
/// replay.
struct KeyArrivals {
  /// Device memory [num_sections, num_sources]. Other GPUs raise a flag at system scope after the
  /// rows that it stands for. Null, like `expected`: what `start` enqueues awaits the keys.
  const std::uint64_t* flags = nullptr;
  /// Device memory: rows whose flag is *expected or more are there. Fixed while the run lasts.
  const std::uint64_t* expected = nullptr;
  /// K and V of the first ComingKeys::own_rows rows; without data where there are none.
  TensorView own_k = {}, own_v = {};
  /// How long a multiprocessor waits in all before it leaves items over, up to
  /// kMaxPatienceNs. [ns]
  std::int64_t patience_ns = 0;
  /// Enqueues what makes the peers' keys come, such as a push of this rank's: right in front of the
  /// first kernel that may run beside it, and that is then behind what was enqueued before. So the
  /// run's stream must get a kernel that is launched behind that. May be empty.
  std::function<void(void* stream)> start = {};
  /// Tells of a table with the places of part gradients, in device memory, in front of `await`: if
  /// the keys do not come, what is enqueued there turns places at other GPUs into local ones. May
  /// be empty.
  std::function<void(const AddressTable& places)> guard = {};
  /// Enqueues a bounded wait for all flags on a cudaStream_t. What was left over runs behind it.
  std::function<void(void* stream)> await;
};

/// Where the gradients of a part's keys are written instead of dk and dv of the call, such as
/// memory of another GPU: sums over the queries of this call alone. Addresses and strides are
/// multiples of 16 bytes; the last dimension is contiguous.
struct PartGradients {
  void* dk = nullptr;  ///< of the part's first row, head 0; null, like dv: to those of the call
  void* dv = nullptr;
  std::int64_t dk_row_bytes = 0;
  std::int64_t dk_head_bytes = 0;
  std::int64_t dv_row_bytes = 0;
  std::int64_t dv_head_bytes = 0;
  DType dtype = DType::Float32;  ///< or that of k
};

/// What a run of the backward is told of keys that come.
struct BackwardArrivals {
  KeyArrivals keys;
  /// One for each part, or none. They are read while the run is enqueued; what they point to is
  /// written when the run has ended.
  std::span<const PartGradients> gradients;
};

}  // namespace magi
