// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <vector>

#include "base/element.hpp"
#include "base/lse_merge.hpp"
#include "comm/rows/row_layout.hpp"
#include "comm/rows/row_memory.hpp"

namespace magi::comm {
namespace {

/// Calls body(load) with load(wire, idx), which gives an element of the wire's unaligned data; one
/// loop per type, so that each vectorises.
template <typename Body>
void with_loader(DType dtype, const Body& body) {
  with_float_type(dtype, [&]<typename Element>(Element) {
    body([](const std::byte* wire, std::size_t idx) {
      Element element;
      std::memcpy(&element, wire + idx * sizeof(Element), sizeof(Element));
      return widened(element);
    });
  });
}

/// A row of a tensor in the type of its sums, `Sum`: double for float64 tensors, else float.
template <typename Sum>
class WideRow {
 public:
  explicit WideRow(const TensorView& tensor)
      : values(row_elements(tensor)),
        layout_({&tensor, 1}),
        dtype_(tensor.dtype),
        bytes_(layout_.row_bytes()) {}

  void load(std::int64_t row) {
    layout_.pack(row, 1, bytes_.data());
    with_loader(dtype_, [this](auto load) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<Sum>(load(bytes_.data(), i));
      }
    });
  }
  void store(std::int64_t row) {
    with_float_type(dtype_, [this]<typename Element>(Element) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        const auto element = narrowed<Element>(values[i]);
        std::memcpy(bytes_.data() + i * sizeof(Element), &element, sizeof(Element));
      }
    });
    layout_.unpack(row, 1, bytes_.data());
  }

  std::vector<Sum> values;

 private:
  RowLayout layout_;
  DType dtype_;
  std::vector<std::byte> bytes_;
};

/// Calls combine(wire row) for the parts of each row, in order, while `rows` hold the row.
template <typename Combine, typename... Rows>
void for_each_part(const Partials& partials, const Combine& combine, Rows&... rows) {
  const std::size_t row_bytes = wire_row_bytes(partials.to, partials.wire_types);
  for (const SumTask& task : partials.tasks.sums) {
    const auto parts = partials.tasks.parts.subspan(static_cast<std::size_t>(task.first_part),
                                                    static_cast<std::size_t>(task.num_parts));
    for (std::int32_t i = 0; i < task.num_rows; ++i) {
      (rows.load(task.row + i), ...);
      for (const std::int32_t part : parts) {
        combine(partials.wire + static_cast<std::size_t>(part + i) * row_bytes);
      }
      (rows.store(task.row + i), ...);
    }
  }
}

/// Bytes of a wire row before those of tensor `t`.
std::size_t wire_offset(const Partials& partials, std::size_t t) {
  return wire_row_bytes(partials.to.first(t), partials.wire_types);
}

template <typename Sum>
void add_rows(const Partials& partials, std::size_t t) {
  const std::size_t offset = wire_offset(partials, t);
  WideRow<Sum> row(partials.to[t]);
  const auto add = [&](const std::byte* wire) {
    with_loader(wire_type(partials.wire_types, t), [&](auto load) {
      for (std::size_t i = 0; i < row.values.size(); ++i) {
        row.values[i] += static_cast<Sum>(load(wire + offset, i));
      }
    });
  };
  for_each_part(partials, add, row);
}

/// Weighs a partial against a row. Values of weight zero are not read, so that they may be NaN.
template <typename Sum, typename Load>
void weigh(std::span<Sum> own, const Load& load_partial, const LseWeights<double>& weights) {
  const auto own_weight = static_cast<Sum>(weights.own);
  const auto partial_weight = static_cast<Sum>(weights.partial);
  for (std::size_t i = 0; i < own.size(); ++i) {
    const Sum kept = weights.own != 0 ? own_weight * own[i] : Sum{0};
    own[i] =
        kept + (weights.partial != 0 ? partial_weight * static_cast<Sum>(load_partial(i)) : Sum{0});
  }
}

/// Merges into the pair {out, lse} that begins with tensor `t`.
template <typename Sum, typename Lse>
void merge_rows(const Partials& partials, std::size_t t) {
  const std::size_t out_offset = wire_offset(partials, t);
  const std::size_t lse_offset = wire_offset(partials, t + 1);
  WideRow<Sum> out(partials.to[t]);
  WideRow<Lse> lse(partials.to[t + 1]);
  const auto dim = static_cast<std::size_t>(partials.to[t].shape[2]);
  const auto merge = [&](const std::byte* wire) {
    with_loader(wire_type(partials.wire_types, t + 1), [&](auto load_lse) {
      with_loader(wire_type(partials.wire_types, t), [&](auto load) {
        for (std::size_t head = 0; head < lse.values.size(); ++head) {
          const auto weights = merge_lse(static_cast<double>(lse.values[head]),
                                         static_cast<double>(load_lse(wire + lse_offset, head)));
          weigh(
              std::span(out.values).subspan(head * dim, dim),
              [&](std::size_t i) { return load(wire + out_offset, head * dim + i); }, weights);
          lse.values[head] = static_cast<Lse>(weights.lse);
        }
      });
    });
  };
  for_each_part(partials, merge, out, lse);
}

/// Calls body(sum) with a value of the type that rows of `tensor` are summed in.
template <typename Body>
void with_sum_type(const TensorView& tensor, const Body& body) {
  if (tensor.dtype == DType::Float64) return body(double{});
  body(float{});
}

}  // namespace

void combine_on_host(const Partials& partials) {
  const bool is_merge = partials.kind == ExchangeKind::LseMerge;
  for (std::size_t t = 0; t < partials.to.size(); t += is_merge ? 2 : 1) {
    with_sum_type(partials.to[t], [&]<typename Sum>(Sum) {
      if (!is_merge) return add_rows<Sum>(partials, t);
      with_sum_type(partials.to[t + 1],
                    [&]<typename Lse>(Lse) { merge_rows<Sum, Lse>(partials, t); });
    });
  }
}

}  // namespace magi::comm
