// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "magi/exchange.hpp"
#include "magi/tensor.hpp"

namespace magi::comm {

/// Data types of the elements of an exchange on the wire, which ranks compare: 4 bits for each
/// tensor, the first one lowest, 0 for none.
inline constexpr std::size_t kMaxTensors = 16;
/// The types of `from`; of `to` for tensors that this rank sends no rows of.
std::uint64_t wire_types_of(std::span<const TensorView> from, std::span<const TensorView> to);
inline DType wire_type(std::uint64_t wire_types, std::size_t tensor_idx) {
  return static_cast<DType>(((wire_types >> (4 * tensor_idx)) & 0xf) - 1);
}
/// "float32, float32" for a person; what are no such types, as of bytes of a caller's, in hex.
std::string wire_types_text(std::uint64_t wire_types);

/// The layout of the rows of one tensor in memory: a row is runs of contiguous elements.
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
  explicit RowLayout(std::span<const TensorView> tensors);

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

/// Bytes of a wire row of `tensors` whose elements travel as `wire_types`.
std::size_t wire_row_bytes(std::span<const TensorView> tensors, std::uint64_t wire_types);

/// Rows in all records of `records`.
std::int64_t count_rows(std::span<const PeerRows> records);
/// Rows in those with `peer`.
std::int64_t count_rows(std::span<const PeerRows> records, std::int32_t peer);

}  // namespace magi::comm
