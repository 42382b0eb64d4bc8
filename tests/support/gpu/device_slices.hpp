// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cuda/memory.hpp"
#include "magi/attention_cuda.hpp"
#include "mask/random_mask.hpp"

namespace magi::test {

/// Typed slices on the host, as a caller would hold them on the device.
struct TypedRanges {
  std::vector<std::int32_t> q_ranges;
  std::vector<std::int32_t> k_ranges;
  std::vector<std::int32_t> types;

  void append(Range q, Range k, std::int32_t type);
  /// Appends a slice of up to 70 of so many rows and as many keys, of any type.
  void append_few(RandomStream& random, std::int32_t rows);
  std::int64_t count() const { return std::ssize(types); }
  /// What the device must make of them: clamped, unknown types empty.
  std::vector<BandSlice> bands(std::int32_t rows_q, std::int32_t rows_k) const;
};

/// The ranges whose bands these are; nothing where a band has none.
std::optional<TypedRanges> typed_ranges(std::span<const BandSlice> slices);

TypedRanges random_ranges(RandomStream& random, std::int32_t rows_q, std::int32_t rows_k,
                          std::int32_t count);

/// The ranges in device memory; `upload_sync` replaces them in place.
class DeviceRanges {
 public:
  explicit DeviceRanges(const TypedRanges& ranges);
  void upload_sync(const TypedRanges& ranges);
  DeviceSlices view() const;

 private:
  std::int64_t count_;
  DeviceBuffer q_ranges_;
  DeviceBuffer k_ranges_;
  DeviceBuffer types_;
};

/// Random bfloat16 tensors of one call, contiguous; out and lse poisoned with NaN.
class CallTensors {
 public:
  CallTensors(std::int32_t rows_q, std::int32_t rows_k, std::int32_t heads_q, std::int32_t heads_kv,
              std::int32_t dim);
  ForwardArgs args() const;
  void poison_sync() const;
  /// Bytes of out, then of lse.
  std::vector<std::uint8_t> results_sync() const;

 private:
  std::int64_t rows_q_, rows_k_, heads_q_, heads_kv_, dim_;
  DeviceBuffer q_, k_, v_, out_, lse_;
};

}  // namespace magi::test
