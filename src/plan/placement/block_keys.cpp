// SPDX-License-Identifier: Apache-2.0
#include "plan/placement/block_keys.hpp"

#include <algorithm>

#include "base/math.hpp"

namespace magi {
namespace {

using Word = BlockKeys::Word;

/// Bits in a word without the instruction, which the baseline target lacks.
std::int32_t count_bits(Word word) {
  word -= (word >> 1) & 0x5555555555555555ULL;
  word = (word & 0x3333333333333333ULL) + ((word >> 2) & 0x3333333333333333ULL);
  word = (word + (word >> 4)) & 0x0f0f0f0f0f0f0f0fULL;
  return static_cast<std::int32_t>((word * 0x0101010101010101ULL) >> 56);
}

void set_bits(Word* words, std::int32_t first, std::int32_t last) {
  for (std::int32_t bit = first; bit < last; ++bit) {
    words[bit / 64] |= Word{1} << (bit % 64);
  }
}

}  // namespace

BlockKeys::BlockKeys(const ChunkTable& table) {
  std::int32_t rows = table.num_rows;
  for (const Range& range : table.keys) rows = std::max(rows, range.end);
  // Whole blocks per chunk where the limit allows it, so that own rows are whole blocks too.
  const std::int32_t per_chunk = kMostBlocks / std::max(1, ceil_div(rows, table.chunk_size));
  block_rows_ =
      per_chunk > 0 ? std::max(1, table.chunk_size / per_chunk) : ceil_div(rows, kMostBlocks);
  while (per_chunk > 0 && table.chunk_size % block_rows_ != 0) ++block_rows_;
  const std::int32_t blocks = ceil_div(rows, block_rows_);
  words_ = static_cast<std::size_t>(ceil_div(blocks, 64));
  seen_.assign(table.area.size() * words_, 0);
  own_.assign(table.area.size() * words_, 0);
  for (std::int32_t c = 0; c < table.num_chunks(); ++c) {
    const std::size_t at = static_cast<std::size_t>(c) * words_;
    for (const Range& range : table.keys_of(c)) {
      set_bits(&seen_[at], range.begin / block_rows_, ceil_div(range.end, block_rows_));
    }
    const Range held = table.rows(c);
    const bool is_last = held.end == table.num_rows;
    set_bits(&own_[at], ceil_div(held.begin, block_rows_),
             is_last ? ceil_div(held.end, block_rows_) : held.end / block_rows_);
  }
}

std::int32_t BlockKeys::cost_of_adding(std::int32_t chunk,
                                       std::span<const std::int32_t> chunks) const {
  const Word* const in = seen(chunk);
  const Word* const in_own = own(chunk);
  std::int32_t blocks = 0;
  for (std::size_t w = 0; w < words_; ++w) {
    if (in[w] == 0 && in_own[w] == 0) continue;
    Word needed = 0;
    Word held = 0;
    for (const std::int32_t c : chunks) {
      needed |= seen(c)[w];
      held |= own(c)[w];
    }
    blocks += count_bits(in[w] & ~needed & ~held & ~in_own[w]);
    blocks -= count_bits(needed & ~held & in_own[w]);
  }
  return blocks * block_rows_;
}

void BlockKeys::Pair::fill(std::span<const std::int32_t> chunks, Side& side) const {
  side.chunks = chunks;
  side.once.assign(keys_->words_, 0);
  side.twice.assign(keys_->words_, 0);
  side.own.assign(keys_->words_, 0);
  for (const std::int32_t c : chunks) {
    const Word* const seen = keys_->seen(c);
    const Word* const own = keys_->own(c);
    for (std::size_t w = 0; w < keys_->words_; ++w) {
      side.twice[w] |= side.once[w] & seen[w];
      side.once[w] |= seen[w];
      side.own[w] |= own[w];
    }
  }
}

void BlockKeys::Pair::fill_gains(const Side& from, const Side& to,
                                 std::vector<std::int32_t>& gain) const {
  gain.resize(from.chunks.size());
  for (std::size_t a = 0; a < gain.size(); ++a) {
    const Word* const seen = keys_->seen(from.chunks[a]);
    const Word* const own = keys_->own(from.chunks[a]);
    std::int32_t blocks = 0;
    for (std::size_t w = 0; w < keys_->words_; ++w) {
      if (seen[w] == 0 && own[w] == 0) continue;
      const Word alone = seen[w] & ~from.twice[w];
      // One side of each pair lies in the chunk's own rows, which are of from.own, the other not.
      blocks += count_bits((seen[w] & ~to.once[w] & ~to.own[w] & ~own[w]) |
                           (from.once[w] & ~alone & own[w]));
      blocks -= count_bits((alone & ~from.own[w]) | (to.once[w] & ~to.own[w] & own[w]));
    }
    gain[a] = blocks * keys_->block_rows_;
  }
}

void BlockKeys::Pair::load(const BlockKeys& keys, std::span<const std::int32_t> x,
                           std::span<const std::int32_t> y) {
  keys_ = &keys;
  fill(x, x_);
  fill(y, y_);
  fill_gains(x_, y_, gain_x_);
  fill_gains(y_, x_, gain_y_);
}

/// Change of the rank's remote blocks when chunk `in` takes the place of its chunk `out`.
std::int64_t BlockKeys::Pair::replace(const Side& side, std::int32_t out, std::int32_t in) const {
  const Word* const seen_out = keys_->seen(out);
  const Word* const seen_in = keys_->seen(in);
  std::int64_t blocks = 0;
  for (std::size_t w = 0; w < keys_->words_; ++w) {
    const Word alone = seen_out[w] & ~side.twice[w];
    const Word needed = (side.once[w] & ~alone) | seen_in[w];
    const Word held = (side.own[w] & ~keys_->own(out)[w]) | keys_->own(in)[w];
    blocks += count_bits(needed & ~held) - count_bits(side.once[w] & ~side.own[w]);
  }
  return blocks;
}

std::int64_t BlockKeys::Pair::swap(std::size_t a, std::size_t b) const {
  const std::int32_t chunk_x = x_.chunks[a];
  const std::int32_t chunk_y = y_.chunks[b];
  return (replace(x_, chunk_x, chunk_y) + replace(y_, chunk_y, chunk_x)) * keys_->block_rows_;
}

}  // namespace magi
