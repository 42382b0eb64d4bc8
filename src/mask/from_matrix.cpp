// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "magi/mask_builders.hpp"
#include "mask/band_grower.hpp"

namespace magi {
namespace {

// A row is looked at in blocks, so that a matrix costs little more than reading it.
constexpr std::size_t kBlockBytes = 128;
using Block = std::array<std::uint64_t, kBlockBytes / 8>;
constexpr std::uint64_t kLowBits = 0x0101010101010101;
constexpr std::uint64_t kHighBits = 0x8080808080808080;

Block load(const std::uint8_t* at) {
  Block block;
  std::memcpy(block.data(), at, kBlockBytes);
  return block;
}

/// Whether all bytes are those of `word`.
bool repeats(const Block& block, std::uint64_t word) {
  std::uint64_t other = 0;
  for (const std::uint64_t found : block) other |= found ^ word;
  return other == 0;
}

bool has_zero_byte(const Block& block) {
  if (repeats(block, kLowBits)) return false;  // as bools are: found out faster
  std::uint64_t found = 0;
  for (const std::uint64_t word : block) found |= (word - kLowBits) & ~word & kHighBits;
  return found != 0;
}

/// The first byte from `at` on that is zero (is_zero_wanted) or is not; `end` without one.
template <bool is_zero_wanted>
const std::uint8_t* find(const std::uint8_t* at, const std::uint8_t* end) {
  while (static_cast<std::size_t>(end - at) >= kBlockBytes) {
    const Block block = load(at);
    if (is_zero_wanted ? has_zero_byte(block) : !repeats(block, 0)) break;
    at += kBlockBytes;
  }
  while (at != end && (*at == 0) != is_zero_wanted) ++at;
  return at;
}

void find_runs(std::span<const std::uint8_t> row, std::vector<Range>& runs) {
  runs.clear();
  const std::uint8_t* const first = row.data();
  const std::uint8_t* const end = first + row.size();
  for (const std::uint8_t* at = find<false>(first, end); at != end; at = find<false>(at, end)) {
    const std::uint8_t* const begin = at;
    at = find<true>(at, end);
    runs.push_back(
        {static_cast<std::int32_t>(begin - first), static_cast<std::int32_t>(at - first)});
  }
}

}  // namespace

Mask mask_from_matrix(std::span<const std::uint8_t> matrix, std::int32_t rows_q,
                      std::int32_t rows_k) {
  Mask mask{rows_q, rows_k, {}};
  validate(mask);
  const std::int64_t pairs = std::int64_t{rows_q} * rows_k;
  if (static_cast<std::int64_t>(matrix.size()) != pairs) {
    throw invalid("size of the matrix", matrix.size(), std::to_string(pairs) + ", rows_q * rows_k");
  }
  const auto width = static_cast<std::size_t>(rows_k);
  BandGrower grower;
  std::vector<Range> runs;
  for (std::int32_t i = 0; i < rows_q; ++i) {
    find_runs(matrix.subspan(static_cast<std::size_t>(i) * width, width), runs);
    grower.add_row(i, runs);
  }
  mask.slices = grower.finish();
  return mask;
}

}  // namespace magi
