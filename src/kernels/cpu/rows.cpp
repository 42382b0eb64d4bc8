// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/rows.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/element.hpp"

namespace magi::cpu {

template <typename Real>
void load_row(const TensorView& tensor, std::int64_t token, std::int64_t head,
              std::int64_t padded_dim, Real* to) {
  const std::int64_t offset = row_offset(tensor, token, head);
  const std::int64_t dim = tensor.shape[2];
  with_float_type(tensor.dtype, [&]<typename Element>(Element) {
    const Element* from = static_cast<const Element*>(tensor.data) + offset;
    if constexpr (std::is_same_v<Element, Real>) {
      std::memcpy(to, from, static_cast<std::size_t>(dim) * sizeof(Real));
    } else {
      for (std::int64_t d = 0; d < dim; ++d) to[d] = static_cast<Real>(widened(from[d]));
    }
  });
  std::fill(to + dim, to + std::max(padded_dim, dim), Real{0});
}

template <typename Real>
void store_row(const TensorView& tensor, std::int64_t token, std::int64_t head, const Real* from,
               Real factor, StoreMode mode) {
  const std::int64_t offset = row_offset(tensor, token, head);
  const std::int64_t dim = tensor.shape[2];
  with_float_type(tensor.dtype, [&]<typename Element>(Element) {
    Element* to = static_cast<Element*>(tensor.data) + offset;
    if (mode == StoreMode::Write) {
      for (std::int64_t d = 0; d < dim; ++d) to[d] = narrowed<Element>(from[d] * factor);
    } else {
      for (std::int64_t d = 0; d < dim; ++d) {
        to[d] = narrowed<Element>(static_cast<Real>(widened(to[d])) + from[d] * factor);
      }
    }
  });
}

template void load_row(const TensorView&, std::int64_t, std::int64_t, std::int64_t, float*);
template void load_row(const TensorView&, std::int64_t, std::int64_t, std::int64_t, double*);
template void store_row(const TensorView&, std::int64_t, std::int64_t, const float*, float,
                        StoreMode);
template void store_row(const TensorView&, std::int64_t, std::int64_t, const double*, double,
                        StoreMode);

}  // namespace magi::cpu
