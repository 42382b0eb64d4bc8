// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "magi/exchange.hpp"
#include "magi/tensor.hpp"

namespace magi::comm {

/// Data types of the tensors of an exchange, as they travel in a packet header: 4 bits each, the
/// first tensor lowest, 0 for none.
inline constexpr std::size_t kMaxTensors = 16;
std::uint64_t encode_wire_types(std::span<const TensorView> tensors);
DType wire_type(std::uint64_t wire_types, std::size_t tensor_idx);

/// How the rows of one tensor lie in memory: a row is runs of contiguous elements.
struct TensorRows {
  std::byte* data = nullptr;
  DType dtype = DType::Float32;
  std::int64_t row_stride_bytes = 0;
  std::vector<std::int64_t> run_offsets;  ///< elements from the start of the row
  std::size_t run_elements = 0;
  std::size_t num_elements = 0;  ///< of a row

  std::byte* row(std::int64_t row_idx) const { return data + row_idx * row_stride_bytes; }
};

/// Elements of one row: the product of the extents beyond axis 0.
std::size_t row_elements(const TensorView& tensor);

/// The rows of all tensors of an exchange: on the wire a row is the concatenation of its tensors'
/// rows, each contiguous.
class RowLayout {
 public:
  RowLayout() = default;
  explicit RowLayout(std::span<const TensorView> tensors);
  /// `num_bytes` rows of one byte.
  static RowLayout of_bytes(std::byte* data);

  std::size_t row_bytes() const { return row_bytes_; }
  const std::vector<TensorRows>& tensors() const { return tensors_; }
  /// Rows [row, row + count) -> count * row_bytes() contiguous bytes, and back.
  void pack(std::int64_t row, std::int64_t count, std::byte* wire) const;
  void unpack(std::int64_t row, std::int64_t count, const std::byte* wire) const;

 private:
  bool is_plain() const;
  template <typename Visit>
  void visit_runs(std::int64_t row, std::int64_t count, Visit visit) const;

  std::vector<TensorRows> tensors_;
  std::vector<std::size_t> element_bytes_;
  std::size_t row_bytes_ = 0;
};

/// A walk over the rows of one peer's records.
class RowCursor {
 public:
  RowCursor() = default;
  explicit RowCursor(std::vector<PeerRows> records) : records_(std::move(records)) {}
  struct Rows {
    std::int64_t first = 0;
    std::int64_t count = 0;
  };
  /// The next at most `limit` consecutive rows, without passing them.
  Rows next(std::int64_t limit) const;
  void pass(std::int64_t count);

 private:
  std::vector<PeerRows> records_;
  std::size_t record_idx_ = 0;
  std::int64_t passed_ = 0;  ///< rows of the current record
};

/// Rows in all records of `records`.
std::int64_t count_rows(std::span<const PeerRows> records);

}  // namespace magi::comm
