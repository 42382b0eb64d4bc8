// SPDX-License-Identifier: Apache-2.0
#include "comm/rows/accumulator.hpp"

#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "base/half.hpp"

namespace magi::comm {
namespace {

template <typename T>
T load_as(const std::byte* wire, std::size_t idx) {
  T value;
  std::memcpy(&value, wire + idx * sizeof(T), sizeof(T));
  return value;
}

bool is_16_bit(DType dtype) { return dtype == DType::Float16 || dtype == DType::BFloat16; }

/// Calls body(load) with load(wire, idx) for the type; one loop per type, so that each vectorises.
template <typename Body>
void with_loader(DType dtype, Body body) {
  switch (dtype) {
    case DType::Float64:
      return body([](const std::byte* wire, std::size_t i) { return load_as<double>(wire, i); });
    case DType::Float32:
      return body([](const std::byte* wire, std::size_t i) { return load_as<float>(wire, i); });
    case DType::Float16:
      return body([](const std::byte* wire, std::size_t i) {
        return float16_to_float(load_as<std::uint16_t>(wire, i));
      });
    case DType::BFloat16:
      return body([](const std::byte* wire, std::size_t i) {
        return bfloat16_to_float(load_as<std::uint16_t>(wire, i));
      });
    case DType::Int32:
    case DType::Int64:
      break;
  }
  throw InternalError("broken invariant: a reduce of integers is refused at the call");
}

TensorView float_copy_view(const TensorView& output, std::vector<float>& copy, std::int64_t rows) {
  TensorView view = output;
  view.dtype = DType::Float32;
  view.shape[0] = rows;
  std::int64_t stride = 1;
  for (std::int32_t axis = view.rank - 1; axis >= 0; --axis) {
    view.stride[static_cast<std::size_t>(axis)] = stride;
    stride *= view.shape[static_cast<std::size_t>(axis)];
  }
  copy.resize(static_cast<std::size_t>(rows > 0 ? stride : 0));
  view.data = copy.data();
  return view;
}

}  // namespace

TouchedRows::TouchedRows(std::span<const SumTask> tasks) {
  if (tasks.empty()) return;
  first_row_ = tasks.front().row;  // they ascend
  const std::int64_t end = std::int64_t{tasks.back().row} + tasks.back().num_rows;
  slot_of_row_.assign(static_cast<std::size_t>(end - first_row_), -1);
  for (const SumTask& task : tasks) {
    for (std::int32_t i = 0; i < task.num_rows; ++i) {
      slot_of_row_[static_cast<std::size_t>(task.row - first_row_ + i)] =
          static_cast<std::int32_t>(num_slots_++);
    }
  }
}

Accumulator::Accumulator(const TensorView& output, const TouchedRows& touched)
    : output_(std::span(&output, 1)),
      output_type_(output.dtype),
      view_(output),
      touched_(&touched),
      is_copy_(is_16_bit(output.dtype)) {
  if (is_copy_) view_ = float_copy_view(output, copy_, touched.size());
}

void Accumulator::load() {
  if (!is_copy_) return;
  const std::size_t n = output_.row_bytes() / dtype_bytes(output_type_);
  std::vector<std::byte> row(output_.row_bytes());
  float* target = copy_.data();
  touched_->for_each([&](std::int64_t row_idx) {
    output_.pack(row_idx, 1, row.data());
    with_loader(output_type_, [&](auto load) {
      for (std::size_t i = 0; i < n; ++i) target[i] = static_cast<float>(load(row.data(), i));
    });
    target += n;
  });
}

void Accumulator::store() {
  if (!is_copy_) return;
  const std::size_t n = output_.row_bytes() / dtype_bytes(output_type_);
  std::vector<std::uint16_t> row(n);
  const float* source = copy_.data();
  const bool is_half = output_type_ == DType::Float16;
  touched_->for_each([&](std::int64_t row_idx) {
    std::transform(source, source + n, row.begin(), [is_half](float value) {
      return is_half ? float_to_float16(value) : float_to_bfloat16(value);
    });
    output_.unpack(row_idx, 1, reinterpret_cast<const std::byte*>(row.data()));
    source += n;
  });
}

double load_element(const std::byte* wire, DType dtype, std::size_t idx) {
  double value = 0;
  with_loader(dtype, [&](auto load) { value = static_cast<double>(load(wire, idx)); });
  return value;
}

template <typename Acc>
void combine(Acc* target, const std::byte* wire, DType wire_type, const WeightedRun& run) {
  const Acc a = static_cast<Acc>(run.scale_target);
  const Acc b = static_cast<Acc>(run.scale_wire);
  const bool keeps_target = run.scale_target != 0;
  const bool takes_wire = run.scale_wire != 0;
  with_loader(wire_type, [&](auto load) {
    for (std::size_t i = 0; i < run.num_elements; ++i) {
      Acc& value = target[static_cast<std::int64_t>(i) * run.stride];
      const Acc kept = keeps_target ? a * value : Acc{0};
      value = kept + (takes_wire ? b * static_cast<Acc>(load(wire, i)) : Acc{0});
    }
  });
}

template <typename Acc>
void add(Acc* target, const std::byte* wire, DType wire_type, std::size_t num_elements) {
  with_loader(wire_type, [&](auto load) {
    for (std::size_t i = 0; i < num_elements; ++i) target[i] += static_cast<Acc>(load(wire, i));
  });
}

template void combine(float*, const std::byte*, DType, const WeightedRun&);
template void combine(double*, const std::byte*, DType, const WeightedRun&);
template void add(float*, const std::byte*, DType, std::size_t);
template void add(double*, const std::byte*, DType, std::size_t);

}  // namespace magi::comm
