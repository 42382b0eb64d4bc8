// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "comm/rows/wire_order.hpp"
#include "magi/comm.hpp"

namespace magi::comm {

/// Combines partial rows from the wire with the rows of tensors.
class RowSink {
 public:
  virtual ~RowSink() = default;
  struct Rows {
    std::int64_t first = 0;
    std::int64_t count = 0;
  };
  virtual void put(std::uint64_t wire_types, Rows rows, const std::byte* wire) = 0;
  /// After the last put.
  virtual void finish() = 0;
};

/// `sums` names the rows that will be put. Partials are combined in the order of the puts, in
/// float64 for float64 outputs, else in float32; 16-bit outputs are rounded once, in finish().
std::unique_ptr<RowSink> make_reduce_sink(std::span<const TensorView> outputs,
                                          std::span<const SumTask> sums, ExchangeKind kind);

}  // namespace magi::comm
