// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/rows.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/check.hpp"
#include "base/half.hpp"

namespace magi::cpu {
namespace {

template <typename Element, typename Real, typename Convert>
void load_as(const TensorView& tensor, std::int64_t offset, Real* to, const Convert& convert) {
  const Element* from = static_cast<const Element*>(tensor.data) + offset;
  const std::int64_t dim = tensor.shape[2];
  if constexpr (std::is_same_v<Element, Real>) {
    std::memcpy(to, from, static_cast<std::size_t>(dim) * sizeof(Real));
  } else {
    for (std::int64_t d = 0; d < dim; ++d) to[d] = convert(from[d]);
  }
}

template <typename Element, typename Real, typename Load, typename Save>
void store_as(const TensorView& tensor, std::int64_t offset, const Real* from, Real factor,
              StoreMode mode, const Load& load, const Save& save) {
  Element* to = static_cast<Element*>(tensor.data) + offset;
  if (mode == StoreMode::Write) {
    for (std::int64_t d = 0; d < tensor.shape[2]; ++d) to[d] = save(from[d] * factor);
  } else {
    for (std::int64_t d = 0; d < tensor.shape[2]; ++d) to[d] = save(load(to[d]) + from[d] * factor);
  }
}

}  // namespace

template <typename Real>
void load_row(const TensorView& tensor, std::int64_t token, std::int64_t head,
              std::int64_t padded_dim, Real* to) {
  const std::int64_t offset = row_offset(tensor, token, head);
  const auto plain = [](auto value) { return static_cast<Real>(value); };
  switch (tensor.dtype) {
    case DType::Float32:
      load_as<float>(tensor, offset, to, plain);
      break;
    case DType::Float64:
      load_as<double>(tensor, offset, to, plain);
      break;
    case DType::BFloat16:
      load_as<std::uint16_t>(tensor, offset, to, bfloat16_to_float);
      break;
    case DType::Float16:
      load_as<std::uint16_t>(tensor, offset, to, float16_to_float);
      break;
    case DType::Int32:
    case DType::Int64:
      MAGI_CHECK(tensor.dtype != DType::Int32 && tensor.dtype != DType::Int64);
  }
  std::fill(to + tensor.shape[2], to + std::max(padded_dim, tensor.shape[2]), Real{0});
}

template <typename Real>
void store_row(const TensorView& tensor, std::int64_t token, std::int64_t head, const Real* from,
               Real factor, StoreMode mode) {
  const std::int64_t offset = row_offset(tensor, token, head);
  const auto load = [](auto value) { return static_cast<Real>(value); };
  switch (tensor.dtype) {
    case DType::Float32:
      return store_as<float>(tensor, offset, from, factor, mode, load,
                             [](Real x) { return static_cast<float>(x); });
    case DType::Float64:
      return store_as<double>(tensor, offset, from, factor, mode, load,
                              [](Real x) { return static_cast<double>(x); });
    case DType::BFloat16:
      return store_as<std::uint16_t>(
          tensor, offset, from, factor, mode, bfloat16_to_float,
          [](Real x) { return float_to_bfloat16(static_cast<float>(x)); });
    case DType::Float16:
      return store_as<std::uint16_t>(
          tensor, offset, from, factor, mode, float16_to_float,
          [](Real x) { return float_to_float16(static_cast<float>(x)); });
    case DType::Int32:
    case DType::Int64:
      MAGI_CHECK(tensor.dtype != DType::Int32 && tensor.dtype != DType::Int64);
  }
}

template void load_row(const TensorView&, std::int64_t, std::int64_t, std::int64_t, float*);
template void load_row(const TensorView&, std::int64_t, std::int64_t, std::int64_t, double*);
template void store_row(const TensorView&, std::int64_t, std::int64_t, const float*, float,
                        StoreMode);
template void store_row(const TensorView&, std::int64_t, std::int64_t, const double*, double,
                        StoreMode);

}  // namespace magi::cpu
