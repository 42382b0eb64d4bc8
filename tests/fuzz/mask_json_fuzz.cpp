// SPDX-License-Identifier: Apache-2.0
// Any text gives a valid mask that survives a round trip, or InvalidArgument; a small mask is also
// counted in two ways that share no code.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "magi/error.hpp"
#include "magi/mask_builders.hpp"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void check(const magi::Mask& mask) {
  magi::validate(mask);
  require(magi::mask_from_json(magi::mask_to_json(mask)) == mask);
  for (const magi::BandSlice& slice : mask.slices) {
    require(magi::area(magi::shrink(slice)) == magi::area(slice));
    require(magi::to_typed(slice).size() <= 3);
  }
  if (mask.slices.size() > 32) return;
  if (std::int64_t{mask.rows_q} * mask.rows_k > 4096) return;
  std::int64_t pairs = 0;
  for (const std::uint16_t count : magi::expand(mask)) pairs += count;
  require(pairs == magi::area(mask));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    check(magi::mask_from_json({reinterpret_cast<const char*>(data), size}));
  } catch (const magi::InvalidArgument&) {
    // The other allowed answer.
  }
  return 0;
}
