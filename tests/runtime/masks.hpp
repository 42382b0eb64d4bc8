// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "magi/mask_builders.hpp"

namespace magi::testing {

struct NamedMask {
  std::string name;
  Mask mask;
};

/// One mask of every kind users have, over `rows` rows (100 or more).
inline std::vector<NamedMask> masks_of_all_kinds(std::int32_t rows) {
  const Range all{0, rows};
  const std::vector<std::int32_t> documents{0, 7, 8, rows / 3, rows / 2 + 3, rows};
  const std::vector<std::int32_t> prefixes{3, 1, 20, 0, 64};
  const std::int32_t half = rows / 2;
  const Range ranges_q[] = {{0, half}, {half, rows}, {half / 2, rows - 5}, {half, rows}, {3, 3}};
  const Range ranges_k[] = {{0, half}, {0, half}, {half + 1, rows}, {half - 20, rows}, {0, rows}};
  const MaskType types[] = {MaskType::Causal, MaskType::Full, MaskType::InverseCausal,
                            MaskType::BidirectionalCausal, MaskType::Full};
  const MaskType full[] = {MaskType::Full};
  return {{"full", mask_from_ranges({&all, 1}, {&all, 1}, full, rows, rows)},
          {"causal", mask_from_window(all, all, {.left = -1, .right = 0}, rows, rows)},
          {"documents", mask_from_cu_seqlens(documents, documents, {.is_causal = true})},
          {"window", mask_from_window(all, all, {.left = 30, .right = 0}, rows, rows)},
          {"prefix-LM", mask_prefix_lm(documents, prefixes)},
          {"all four types", mask_from_ranges(ranges_q, ranges_k, types, rows, rows)},
          {"empty", Mask{.rows_q = rows, .rows_k = rows}}};
}

}  // namespace magi::testing
