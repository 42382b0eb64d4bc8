// SPDX-License-Identifier: Apache-2.0
#include "comm/rows/row_layout.hpp"

#include <algorithm>
#include <cstring>

#include "base/words.hpp"

namespace magi::comm {
namespace {

TensorRows rows_of(const TensorView& tensor) {
  TensorRows rows{.data = static_cast<std::byte*>(tensor.data), .dtype = tensor.dtype};
  if (tensor.rank == 0) return rows;
  rows.row_stride_bytes = tensor.stride[0] * static_cast<std::int64_t>(dtype_bytes(tensor.dtype));
  rows.num_elements = row_elements(tensor);
  // Inner axes that follow each other without a gap join into one run.
  std::int64_t run = 1;
  std::int32_t axis = tensor.rank - 1;
  for (; axis >= 1; --axis) {
    const auto a = static_cast<std::size_t>(axis);
    if (tensor.shape[a] != 1 && tensor.stride[a] != run) break;
    run *= tensor.shape[a];
  }
  rows.run_elements = static_cast<std::size_t>(run);
  rows.run_offsets = {0};
  for (std::int32_t outer = 1; outer <= axis; ++outer) {
    const auto a = static_cast<std::size_t>(outer);
    std::vector<std::int64_t> offsets;
    for (const std::int64_t offset : rows.run_offsets) {
      for (std::int64_t i = 0; i < tensor.shape[a]; ++i) {
        offsets.push_back(offset + i * tensor.stride[a]);
      }
    }
    rows.run_offsets = std::move(offsets);
  }
  return rows;
}

}  // namespace

std::uint64_t wire_types_of(std::span<const TensorView> from, std::span<const TensorView> to) {
  std::uint64_t code = 0;
  for (std::size_t i = from.size(); i-- > 0;) {
    const DType dtype = from[i].empty() ? to[i].dtype : from[i].dtype;
    code = (code << 4) | (static_cast<std::uint64_t>(dtype) + 1);
  }
  return code;
}

std::string wire_types_text(std::uint64_t wire_types) {
  constexpr std::uint64_t kNumTypes = static_cast<std::uint64_t>(DType::Int64) + 1;
  std::string text;
  for (std::uint64_t rest = wire_types; rest != 0; rest >>= 4) {
    const std::uint64_t code = rest & 0xf;
    if (code == 0 || code > kNumTypes) return hex(wire_types);
    text += (text.empty() ? "" : ", ") + std::string(dtype_name(static_cast<DType>(code - 1)));
  }
  return text.empty() ? hex(wire_types) : text;
}

std::size_t row_elements(const TensorView& tensor) {
  std::int64_t count = tensor.rank > 0 ? 1 : 0;
  for (std::int32_t axis = 1; axis < tensor.rank; ++axis) {
    count *= tensor.shape[static_cast<std::size_t>(axis)];
  }
  return static_cast<std::size_t>(count);
}

RowLayout::RowLayout(std::span<const TensorView> tensors) {
  for (const TensorView& tensor : tensors) {
    tensors_.push_back(rows_of(tensor));
    element_bytes_.push_back(dtype_bytes(tensor.dtype));
    row_bytes_ += tensors_.back().num_elements * element_bytes_.back();
  }
}

std::size_t wire_row_bytes(std::span<const TensorView> tensors, std::uint64_t wire_types) {
  std::size_t num_bytes = 0;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    num_bytes += row_elements(tensors[t]) * dtype_bytes(wire_type(wire_types, t));
  }
  return num_bytes;
}

bool RowLayout::is_plain() const {
  return tensors_.size() == 1 && tensors_[0].run_offsets.size() == 1 &&
         tensors_[0].row_stride_bytes == static_cast<std::int64_t>(row_bytes_);
}

template <typename Visit>
void RowLayout::visit_runs(std::int64_t row, std::int64_t count, Visit visit) const {
  if (is_plain()) {
    visit(tensors_[0].row(row), std::size_t{0}, static_cast<std::size_t>(count) * row_bytes_);
    return;
  }
  std::size_t wire_offset = 0;
  for (std::int64_t r = row; r < row + count; ++r) {
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      std::byte* start = tensors_[t].row(r);
      const std::size_t run_bytes = tensors_[t].run_elements * element_bytes_[t];
      for (const std::int64_t offset : tensors_[t].run_offsets) {
        visit(start + offset * static_cast<std::int64_t>(element_bytes_[t]), wire_offset,
              run_bytes);
        wire_offset += run_bytes;
      }
    }
  }
}

void RowLayout::pack(std::int64_t row, std::int64_t count, std::byte* wire) const {
  visit_runs(row, count, [wire](const std::byte* run, std::size_t offset, std::size_t num_bytes) {
    std::memcpy(wire + offset, run, num_bytes);
  });
}

void RowLayout::unpack(std::int64_t row, std::int64_t count, const std::byte* wire) const {
  visit_runs(row, count, [wire](std::byte* run, std::size_t offset, std::size_t num_bytes) {
    std::memcpy(run, wire + offset, num_bytes);
  });
}

std::int64_t count_rows(std::span<const PeerRows> records) {
  std::int64_t count = 0;
  for (const PeerRows& record : records) count += record.num_rows;
  return count;
}

std::int64_t count_rows(std::span<const PeerRows> records, std::int32_t peer) {
  std::int64_t count = 0;
  for (const PeerRows& record : records) count += record.peer == peer ? record.num_rows : 0;
  return count;
}

}  // namespace magi::comm
