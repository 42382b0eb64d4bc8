// SPDX-License-Identifier: Apache-2.0
#include "comm/exchange_case.hpp"

#include <cstring>
#include <random>

#include "base/element.hpp"

namespace magi::testing {
namespace {

void add_transfer(ExchangeCase& test, std::int32_t from, std::int32_t to, std::int64_t row,
                  std::int64_t count) {
  const auto f = static_cast<std::size_t>(from);
  const auto t = static_cast<std::size_t>(to);
  test.ranks[f].owned.push_back({.peer = to,
                                 .row = static_cast<std::int32_t>(row),
                                 .num_rows = static_cast<std::int32_t>(count)});
  test.ranks[t].needed.push_back({.peer = from,
                                  .row = static_cast<std::int32_t>(test.needed_rows[t]),
                                  .num_rows = static_cast<std::int32_t>(count)});
  test.needed_rows[t] += count;
  for (std::int64_t i = 0; i < count; ++i) test.origin[t].push_back({from, row + i});
}

ExchangeCase empty_case(std::int32_t num_ranks, std::int64_t owned_rows) {
  const auto n = static_cast<std::size_t>(num_ranks);
  return {.num_ranks = num_ranks,
          .owned_rows = owned_rows,
          .needed_rows = std::vector<std::int64_t>(n),
          .ranks = std::vector<RowExchange>(n),
          .origin = std::vector<std::vector<ExchangeCase::Origin>>(n)};
}

std::byte* element(const TensorView& tensor, const std::vector<std::int64_t>& at) {
  std::int64_t offset = 0;
  for (std::size_t axis = 0; axis < at.size(); ++axis) offset += at[axis] * tensor.stride[axis];
  return static_cast<std::byte*>(tensor.data) +
         offset * static_cast<std::int64_t>(dtype_bytes(tensor.dtype));
}

/// Calls body(element) with an element of any type.
template <typename Body>
void with_type(DType dtype, const Body& body) {
  if (dtype == DType::Int32) return body(std::int32_t{});
  if (dtype == DType::Int64) return body(std::int64_t{});
  with_float_type(dtype, body);
}

void write_element(const TensorView& tensor, const std::vector<std::int64_t>& at, double value) {
  with_type(tensor.dtype, [&]<typename Element>(Element) {
    const auto stored = narrowed<Element>(value);
    std::memcpy(element(tensor, at), &stored, sizeof(stored));
  });
}

}  // namespace

std::int64_t ExchangeCase::rows_between(std::int32_t from, std::int32_t to) const {
  std::int64_t count = 0;
  for (const PeerRows& record : ranks[static_cast<std::size_t>(from)].owned) {
    if (record.peer == to) count += record.num_rows;
  }
  return count;
}

ExchangeCase random_case(const CaseShape& shape, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  ExchangeCase test = empty_case(shape.num_ranks, shape.owned_rows);
  const auto below = [&random](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  for (std::int32_t to = 0; to < shape.num_ranks; ++to) {
    for (std::int32_t from = 0; from < shape.num_ranks; ++from) {
      if (from == shape.idle_rank || to == shape.idle_rank) continue;
      if (from == to && !shape.with_own_rows) continue;
      // Zero to two disjoint pieces, some of them of no rows.
      std::int64_t row = 0;
      for (std::int64_t piece = below(3); piece > 0 && row < shape.owned_rows; --piece) {
        row += below(shape.owned_rows - row);
        const std::int64_t count = below(shape.owned_rows - row + 1);
        add_transfer(test, from, to, row, count);
        row += count;
      }
    }
  }
  return test;
}

ExchangeCase all_to_all_case(std::int32_t num_ranks, std::int64_t owned_rows) {
  ExchangeCase test = empty_case(num_ranks, owned_rows);
  for (std::int32_t to = 0; to < num_ranks; ++to) {
    for (std::int32_t from = 0; from < num_ranks; ++from) {
      if (from != to) add_transfer(test, from, to, 0, owned_rows);
    }
  }
  return test;
}

HostTensor make_tensor(DType dtype, std::vector<std::int64_t> shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  HostTensor tensor;
  tensor.storage.resize(static_cast<std::size_t>(count) * dtype_bytes(dtype) + 1);
  tensor.view = {.data = tensor.storage.data(),
                 .dtype = dtype,
                 .rank = static_cast<std::int32_t>(shape.size())};
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    tensor.view.shape[axis] = shape[axis];
    tensor.view.stride[axis] =
        axis + 1 == shape.size() ? 1 : tensor.view.stride[axis + 1] * shape[axis + 1];
  }
  return tensor;
}

HostTensor make_head_slice(DType dtype, std::int64_t rows, std::int64_t heads, std::int64_t dim) {
  HostTensor tensor = make_tensor(dtype, {rows, heads + 2, dim});
  tensor.view = tensor.view.slice(1, 1, 1 + heads);
  return tensor;
}

double read_element(const TensorView& tensor, const std::vector<std::int64_t>& at) {
  double value = 0;
  with_type(tensor.dtype, [&]<typename Element>(Element stored) {
    std::memcpy(&stored, element(tensor, at), sizeof(stored));
    if constexpr (std::is_integral_v<Element>) {
      value = static_cast<double>(stored);
    } else {
      value = widened(stored);
    }
  });
  return value;
}

void for_each_element(const TensorView& tensor,
                      const std::function<void(const std::vector<std::int64_t>&)>& visit) {
  std::vector<std::int64_t> at(static_cast<std::size_t>(tensor.rank));
  for (std::int64_t i = 0; i < tensor.num_elements(); ++i) {
    std::int64_t rest = i;
    for (std::size_t axis = at.size(); axis-- > 0;) {
      at[axis] = rest % tensor.shape[axis];
      rest /= tensor.shape[axis];
    }
    visit(at);
  }
}

void fill(const TensorView& tensor,
          const std::function<double(const std::vector<std::int64_t>&)>& value) {
  for_each_element(
      tensor, [&](const std::vector<std::int64_t>& at) { write_element(tensor, at, value(at)); });
}

double mark(std::int32_t rank, std::int64_t row, std::int64_t place) {
  return static_cast<double>((rank * 31 + row * 7 + place) % 251);
}

}  // namespace magi::testing
