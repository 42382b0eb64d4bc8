// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/row_layout.hpp"
#include "magi/comm.hpp"

namespace magi::comm {

/// What a rank does with rows that arrive.
class RowSink {
 public:
  virtual ~RowSink() = default;
  /// Empty if rows of these types are welcome, else what was expected, for a message.
  virtual std::string refuse(std::uint64_t wire_types) const = 0;
  /// Before the first put and after the last one.
  virtual void begin() {}
  virtual void finish() {}
  virtual void put(std::uint64_t wire_types, RowCursor::Rows rows, const std::byte* wire) = 0;
};

/// Bytes of one row of `outputs` when its elements travel as `wire_types`.
std::size_t wire_row_bytes(std::span<const TensorView> outputs, std::uint64_t wire_types);

std::unique_ptr<RowSink> make_cast_sink(std::span<const TensorView> outputs);
/// `owned` names the rows that will be put. Partials are combined in the order of the puts, in
/// float64 for float64 outputs, else in float32; 16-bit outputs are rounded once, in finish().
std::unique_ptr<RowSink> make_reduce_sink(std::span<const TensorView> outputs,
                                          std::span<const PeerRows> owned, ReduceOp op);

}  // namespace magi::comm
