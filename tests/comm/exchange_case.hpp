// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "magi/comm.hpp"

namespace magi::testing {

/// The exchange tables of all ranks, as a plan would give them.
struct ExchangeCase {
  std::int32_t num_ranks = 0;
  std::int64_t owned_rows = 0;            ///< of every rank's owned tensor
  std::vector<std::int64_t> needed_rows;  ///< of each rank's needed tensor
  std::vector<RowExchange> ranks;
  /// Where needed row i of rank r comes from: origin[r][i] = {owner, row}.
  struct Origin {
    std::int32_t owner = 0;
    std::int64_t row = 0;
  };
  std::vector<std::vector<Origin>> origin;

  /// Rows that `from` owns and `to` needs.
  std::int64_t rows_between(std::int32_t from, std::int32_t to) const;
};

struct CaseShape {
  std::int32_t num_ranks = 4;
  std::int64_t owned_rows = 40;
  bool with_own_rows = false;   ///< some rows go to the own rank
  std::int32_t idle_rank = -1;  ///< owns and needs nothing
};
ExchangeCase random_case(const CaseShape& shape, std::uint64_t seed);

/// Every rank needs all rows of every other rank.
ExchangeCase all_to_all_case(std::int32_t num_ranks, std::int64_t owned_rows);

/// A host tensor and its storage; `view` may be a strided part of the storage.
struct HostTensor {
  std::vector<std::byte> storage;
  TensorView view;
};
HostTensor make_tensor(DType dtype, std::vector<std::int64_t> shape);
/// [rows, heads, dim] as heads [1, 1 + heads) of a tensor with heads + 2 heads.
HostTensor make_head_slice(DType dtype, std::int64_t rows, std::int64_t heads, std::int64_t dim);

/// Element access as double, whatever the type; `at` are indices, one per axis.
double read_element(const TensorView& tensor, const std::vector<std::int64_t>& at);
/// Calls visit(indices) for all elements.
void for_each_element(const TensorView& tensor,
                      const std::function<void(const std::vector<std::int64_t>&)>& visit);
/// Sets every element to value(indices).
void fill(const TensorView& tensor,
          const std::function<double(const std::vector<std::int64_t>&)>& value);

/// A value that tells rank, row and place within the row apart; exact in bfloat16's range of
/// integers where rank, row and place are small.
double mark(std::int32_t rank, std::int64_t row, std::int64_t place);

}  // namespace magi::testing
