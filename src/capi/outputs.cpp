// SPDX-License-Identifier: Apache-2.0
#include "capi/outputs.hpp"

#include <cstdlib>
#include <string>

#include "base/check.hpp"

namespace magi::capi {
namespace {

/// An axis with more than one element; step in bytes, positive.
struct Axis {
  std::int64_t step = 0;
  std::int64_t extent = 0;
  std::int32_t number = 0;
};

/// Where a tensor's elements lie: axes by descending step, and bytes [begin, end).
struct Extent {
  std::array<Axis, kMaxTensorRank> axes{};
  std::size_t num_axes = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int32_t device = 0;

  std::span<const Axis> all() const { return {axes.data(), num_axes}; }
};

/// read_tensor has bounded shapes and strides, so nothing here overflows.
Extent extent_of(const TensorView& tensor) {
  Extent extent{.device = tensor.device};
  if (tensor.data == nullptr || tensor.num_elements() == 0) return extent;
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(tensor.dtype));
  extent.begin = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(tensor.data));
  extent.end = extent.begin + bytes;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(tensor.rank); ++axis) {
    if (tensor.shape[axis] == 1) continue;
    const std::int64_t step = tensor.stride[axis] * bytes;
    const std::int64_t reach = (tensor.shape[axis] - 1) * std::abs(step);
    (step < 0 ? extent.begin : extent.end) += step < 0 ? -reach : reach;
    std::size_t place = extent.num_axes++;
    for (; place > 0 && extent.axes[place - 1].step < std::abs(step); --place) {
      extent.axes[place] = extent.axes[place - 1];
    }
    extent.axes[place] = {.step = std::abs(step),
                          .extent = tensor.shape[axis],
                          .number = static_cast<std::int32_t>(axis)};
  }
  return extent;
}

/// Bytes from the first to behind the last element, for an index along each axis.
std::int64_t span_of(std::span<const Axis> axes, std::int64_t element_bytes) {
  std::int64_t bytes = element_bytes;
  for (const Axis& axis : axes) bytes += (axis.extent - 1) * axis.step;
  return bytes;
}

/// The axis along which neighbours share bytes.
const Axis* overlapping_axis(const Extent& extent, std::int64_t element_bytes) {
  const auto axes = extent.all();
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

/// Whether elements of `a` and of `b`, which begins `distance` bytes behind it, may share bytes.
bool may_overlap(const Part& a, const Part& b, std::int64_t distance) {
  if (distance >= a.span() || -distance >= b.span()) return false;
  if (a.axes.empty() || b.axes.empty() || a.axes[0].step != b.axes[0].step) return true;
  const std::int64_t step = a.axes[0].step;
  const std::int64_t behind = ((distance % step) + step) % step;
  return may_overlap(a.inner(), b.inner(), behind) ||
         may_overlap(a.inner(), b.inner(), behind - step);
}

Part part_of(const Extent& extent, const TensorView& tensor) {
  return {extent.all(), static_cast<std::int64_t>(dtype_bytes(tensor.dtype))};
}

void check_apart(const NamedTensor& output, const Extent& extent, const NamedTensor& other) {
  const Extent its = extent_of(other.tensor);
  if (its.device != extent.device || its.begin >= extent.end || extent.begin >= its.end) return;
  if (!may_overlap(part_of(extent, output.tensor), part_of(its, other.tensor),
                   its.begin - extent.begin)) {
    return;
  }
  throw invalid(output.name, "overlapping " + std::string(other.name) + " in memory",
                "outputs that lie apart from each other and from the inputs");
}

}  // namespace

void check_outputs(std::span<const NamedTensor> outputs, std::span<const NamedTensor> inputs) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const TensorView& tensor = outputs[i].tensor;
    const Extent extent = extent_of(tensor);
    if (extent.begin == extent.end) continue;
    const auto bytes = static_cast<std::int64_t>(dtype_bytes(tensor.dtype));
    if (const Axis* const axis = overlapping_axis(extent, bytes)) {
      throw invalid(std::string(outputs[i].name) + ".stride[" + std::to_string(axis->number) + "]",
                    tensor.stride[static_cast<std::size_t>(axis->number)],
                    "strides by which the elements of an output lie apart");
    }
    for (const NamedTensor& other : outputs.subspan(i + 1)) check_apart(outputs[i], extent, other);
    for (const NamedTensor& other : inputs) check_apart(outputs[i], extent, other);
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
