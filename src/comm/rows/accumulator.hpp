// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/rows/row_layout.hpp"
#include "comm/rows/wire_order.hpp"

namespace magi::comm {

/// Numbers the rows that a list of tasks names.
class TouchedRows {
 public:
  explicit TouchedRows(std::span<const SumTask> tasks);
  std::int64_t size() const { return num_slots_; }
  std::int64_t slot(std::int64_t row) const {
    return slot_of_row_[static_cast<std::size_t>(row - first_row_)];
  }
  /// Calls visit(row) for every touched row, ascending.
  template <typename Visit>
  void for_each(Visit visit) const {
    for (std::size_t i = 0; i < slot_of_row_.size(); ++i) {
      if (slot_of_row_[i] >= 0) visit(first_row_ + static_cast<std::int64_t>(i));
    }
  }

 private:
  std::int64_t first_row_ = 0;
  std::int64_t num_slots_ = 0;
  std::vector<std::int32_t> slot_of_row_;  ///< -1: not touched
};

/// An output while partials are combined into it: the tensor itself, or for 16-bit tensors a
/// float32 copy of the touched rows.
class Accumulator {
 public:
  Accumulator(const TensorView& output, const TouchedRows& touched);
  bool is_float64() const { return view_.dtype == DType::Float64; }
  /// The tensor to combine into, and where row `row` of the output is in it.
  const TensorView& view() const { return view_; }
  std::int64_t row_idx(std::int64_t row) const { return is_copy_ ? touched_->slot(row) : row; }
  void load();
  void store();

 private:
  RowLayout output_;
  DType output_type_;
  TensorView view_;
  const TouchedRows* touched_;
  bool is_copy_;
  std::vector<float> copy_;
};

/// Element `idx` of unaligned wire data of `dtype`, which is a floating-point type.
double load_element(const std::byte* wire, DType dtype, std::size_t idx);

/// target[i * stride] = scale_target * target[i * stride] + scale_wire * wire[i]; what has weight
/// zero is not read, so that it may be NaN.
struct WeightedRun {
  std::size_t num_elements = 0;
  std::int64_t stride = 1;
  double scale_target = 1;
  double scale_wire = 1;
};
template <typename Acc>
void combine(Acc* target, const std::byte* wire, DType wire_type, const WeightedRun& run);
/// target[i] += wire[i].
template <typename Acc>
void add(Acc* target, const std::byte* wire, DType wire_type, std::size_t num_elements);

}  // namespace magi::comm
