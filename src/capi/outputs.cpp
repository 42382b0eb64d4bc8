// SPDX-License-Identifier: Apache-2.0
#include "capi/outputs.hpp"

#include <array>
#include <cstdlib>
#include <string>

#include "base/check.hpp"
#include "comm/rows/row_layout.hpp"

namespace magi::capi {
namespace {

/// An axis with more than one element; step in bytes, positive.
struct Axis {
  std::int64_t step = 0;
  std::int64_t extent = 0;
  std::int32_t number = 0;
};

/// Axes by descending step.
struct Axes {
  std::array<Axis, kMaxTensorRank> values{};
  std::size_t count = 0;

  std::span<const Axis> all() const { return {values.data(), count}; }
};

/// Bytes [begin, end) of a device that hold the elements of a tensor, and what lies between them.
struct Reach {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int32_t device = 0;

  bool meets(const Reach& other) const {
    return device == other.device && begin < other.end && other.begin < end;
  }
};

/// read_tensor has bounded shapes and strides, so nothing here overflows.
Reach reach_of(const TensorView& tensor) {
  Reach reach{.device = tensor.device};
  if (tensor.data == nullptr || tensor.num_elements() == 0) return reach;
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(tensor.dtype));
  reach.begin = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(tensor.data));
  reach.end = reach.begin + bytes;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(tensor.rank); ++axis) {
    const std::int64_t way = (tensor.shape[axis] - 1) * tensor.stride[axis] * bytes;
    (way < 0 ? reach.begin : reach.end) += way;
  }
  return reach;
}

Axes axes_of(const TensorView& tensor) {
  Axes axes;
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(tensor.dtype));
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(tensor.rank); ++axis) {
    if (tensor.shape[axis] == 1) continue;
    const std::int64_t step = std::abs(tensor.stride[axis] * bytes);
    std::size_t place = axes.count++;
    for (; place > 0 && axes.values[place - 1].step < step; --place) {
      axes.values[place] = axes.values[place - 1];
    }
    axes.values[place] = {
        .step = step, .extent = tensor.shape[axis], .number = static_cast<std::int32_t>(axis)};
  }
  return axes;
}

/// Bytes from the first to behind the last element, for an index along each axis.
std::int64_t span_of(std::span<const Axis> axes, std::int64_t element_bytes) {
  std::int64_t bytes = element_bytes;
  for (const Axis& axis : axes) bytes += (axis.extent - 1) * axis.step;
  return bytes;
}

/// The axis along which neighbours share bytes.
const Axis* overlapping_axis(std::span<const Axis> axes, std::int64_t element_bytes) {
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (axes[i].step < span_of(axes.subspan(i + 1), element_bytes)) return &axes[i];
  }
  return nullptr;
}

/// Axes that are left of two tensors and the bytes of their elements.
struct Part {
  std::span<const Axis> axes;
  std::int64_t element_bytes = 0;

  std::int64_t span() const { return span_of(axes, element_bytes); }
  Part inner() const { return {axes.subspan(1), element_bytes}; }
};

/// Whether elements of `a` and of `b`, which begins `distance` bytes after it, may share bytes.
bool may_overlap(const Part& a, const Part& b, std::int64_t distance) {
  if (distance >= a.span() || -distance >= b.span()) return false;
  if (a.axes.empty() || b.axes.empty() || a.axes[0].step != b.axes[0].step) return true;
  const std::int64_t step = a.axes[0].step;
  const std::int64_t behind = ((distance % step) + step) % step;
  return may_overlap(a.inner(), b.inner(), behind) ||
         may_overlap(a.inner(), b.inner(), behind - step);
}

Part part_of(const Axes& axes, const TensorView& tensor) {
  return {axes.all(), static_cast<std::int64_t>(dtype_bytes(tensor.dtype))};
}

/// An output and another tensor whose bytes meet; `distance` lies between their first ones.
void check_apart(const NamedTensor& output, const NamedTensor& other, std::int64_t distance) {
  const Axes axes = axes_of(output.tensor), its = axes_of(other.tensor);
  if (!may_overlap(part_of(axes, output.tensor), part_of(its, other.tensor), distance)) return;
  throw invalid(output.name, "overlapping " + std::string(other.name) + " in memory",
                "outputs that lie apart from each other and from the inputs");
}

/// Checks that no two elements of an output share bytes.
void check_spread(const NamedTensor& output) {
  const TensorView& tensor = output.tensor;
  const Axes axes = axes_of(tensor);
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(tensor.dtype));
  const Axis* const axis = overlapping_axis(axes.all(), bytes);
  if (axis == nullptr) return;
  throw invalid(std::string(output.name) + ".stride[" + std::to_string(axis->number) + "]",
                tensor.stride[static_cast<std::size_t>(axis->number)],
                "strides by which the elements of an output lie apart");
}

}  // namespace

void check_outputs(std::span<const NamedTensor> outputs, std::span<const NamedTensor> inputs) {
  constexpr std::size_t kMostTensors = 2 * comm::kMaxTensors;  // both sides of an exchange
  MAGI_CHECK(outputs.size() + inputs.size() <= kMostTensors);
  std::array<Reach, kMostTensors> reaches;
  const auto named = [&](std::size_t i) -> const NamedTensor& {
    return i < outputs.size() ? outputs[i] : inputs[i - outputs.size()];
  };
  const std::size_t count = outputs.size() + inputs.size();
  for (std::size_t i = 0; i < count; ++i) reaches[i] = reach_of(named(i).tensor);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (reaches[i].begin == reaches[i].end) continue;
    check_spread(outputs[i]);
    for (std::size_t other = i + 1; other < count; ++other) {
      if (!reaches[i].meets(reaches[other])) continue;
      check_apart(outputs[i], named(other), reaches[other].begin - reaches[i].begin);
    }
  }
}

void check_outputs(const AttentionInputs& inputs, const AttentionResult& result) {
  const NamedTensor written[] = {
      {"out", result.out}, {"lse", result.lse}, {"max_logits", result.max_logits}};
  const NamedTensor read[] = {
      {"q", inputs.q}, {"k", inputs.k}, {"v", inputs.v}, {"sink", inputs.sink}};
  check_outputs(written, read);
}

void check_outputs(const AttentionInputs& inputs, const AttentionResult& result,
                   const OutputGradients& output, const InputGradients& input) {
  const NamedTensor written[] = {
      {"dq", input.dq}, {"dk", input.dk}, {"dv", input.dv}, {"dsink", input.dsink}};
  const NamedTensor read[] = {{"q", inputs.q},       {"k", inputs.k},      {"v", inputs.v},
                              {"sink", inputs.sink}, {"out", result.out},  {"lse", result.lse},
                              {"dout", output.dout}, {"dlse", output.dlse}};
  check_outputs(written, read);
}

}  // namespace magi::capi
