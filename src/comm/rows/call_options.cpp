// SPDX-License-Identifier: Apache-2.0
#include "comm/rows/call_options.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>

#include "base/mix.hpp"

namespace magi::comm {
namespace {

struct Field {
  const char* name;  ///< as callers know it
  std::int32_t num_bits;
};

constexpr std::int32_t kNumberBits = 25;
/// Packs from the lowest bits on.
using Fields = std::array<Field, 9>;
constexpr Fields kFields{Field{"softmax_scale", kNumberBits},
                         Field{"softcap", kNumberBits},
                         Field{"sink", 6},
                         Field{"type of q", 3},
                         Field{"max_logits", 1},
                         Field{"dlse", 1},
                         Field{"is_fast_backward", 1},
                         Field{"are_partials_rounded", 1},
                         Field{"forward or backward", 1}};
/// Marks calls without attention, which have a type of q that there is not.
constexpr std::uint64_t kNoType = 7;
constexpr Fields kRowFields{Field{"shift", kNumberBits},
                            Field{"shape of the sequence", kNumberBits},
                            Field{"function", 6},
                            Field{"function", 3},
                            Field{"", 1},
                            Field{"", 1},
                            Field{"", 1},
                            Field{"", 1},
                            Field{"", 1}};
/// A rank without rows may give a sink of any shape.
constexpr std::int32_t kMostSinkAxes = 3;
constexpr std::int64_t kMostSinks = 15;

constexpr std::int32_t num_bits(const Fields& fields) {
  std::int32_t sum = 0;
  for (const Field& field : fields) sum += field.num_bits;
  return sum;
}
static_assert(num_bits(kFields) == 64 && num_bits(kRowFields) == 64);

std::uint64_t hash(std::int64_t number) {
  return (static_cast<std::uint64_t>(number) * kGoldenRatio) >> (64 - kNumberBits);
}

/// Ranks may come to a number in different ways, 0 for 1 / sqrt(head_dim) among them: numbers that
/// are rounded to float32 alike have the same hash.
std::uint64_t hash(double number) {
  constexpr int kDropped = 52 - 23;  // bits of the fractions
  constexpr std::uint64_t kHalf = std::uint64_t{1} << (kDropped - 1);
  const double without_sign_of_zero = number + 0.0;
  const std::uint64_t kept =
      (std::bit_cast<std::uint64_t>(without_sign_of_zero) + kHalf) >> kDropped;
  return (kept * kGoldenRatio) >> (64 - kNumberBits);
}

/// The values of fields, the first one in the lowest bits.
std::uint64_t pack(const std::array<std::uint64_t, kFields.size()>& values) {
  std::uint64_t word = 0;
  for (std::size_t i = values.size(); i-- > 0;) word = word << kFields[i].num_bits | values[i];
  return word;
}

bool is_of_rows(std::uint64_t options) {
  constexpr std::int32_t kBefore = kFields[0].num_bits + kFields[1].num_bits + kFields[2].num_bits;
  return (options >> kBefore & kNoType) == kNoType;
}

}  // namespace

std::uint64_t pack_options(const CallOptions& options) {
  const std::int32_t sink_axes = std::min(options.sink_axes, kMostSinkAxes);
  const std::int64_t num_sinks = std::min(options.num_sinks, kMostSinks);
  return pack({hash(options.softmax_scale), hash(options.softcap),
               static_cast<std::uint64_t>(sink_axes * (kMostSinks + 1) + num_sinks),
               static_cast<std::uint64_t>(options.type), options.has_max_logits, options.has_dlse,
               options.is_fast_backward, options.are_partials_rounded, options.is_backward});
}

std::uint64_t pack_options(const RowOptions& options) {
  return pack({hash(options.shift), hash(options.row_length << 32 | options.num_rows),
               static_cast<std::uint64_t>(options.function), kNoType});
}

std::string differing_options(std::uint64_t a, std::uint64_t b) {
  if (is_of_rows(a) != is_of_rows(b)) return "function";
  std::string text;
  std::uint64_t rest = a ^ b;
  for (const Field& field : is_of_rows(a) ? kRowFields : kFields) {
    const std::uint64_t mask = (std::uint64_t{1} << field.num_bits) - 1;
    if ((rest & mask) != 0) text += (text.empty() ? "" : ", ") + std::string(field.name);
    rest >>= field.num_bits;
  }
  return text;
}

std::string other_options_text(std::int32_t rank, std::uint64_t options, std::int32_t other,
                               std::uint64_t others_options) {
  return "rank " + std::to_string(other) + " calls with other options than rank " +
         std::to_string(rank) + ": " + differing_options(options, others_options);
}

}  // namespace magi::comm
