// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "base/random.hpp"
#include "kernels/schedule/host/forward_list.hpp"
#include "magi/mask.hpp"

namespace magi::test {

/// What a kernel that walks the list would do, head group by head group.
struct ExpandedList {
  std::vector<std::uint16_t> pairs;  ///< [rows_q, rows_k]: how often the pair is counted
  std::vector<int> owners;           ///< [tiles, head groups]: items or splits that write it
  std::vector<int> writers;          ///< [slots, head groups]: splits that write it
  bool is_inside = true;             ///< no unmasked tile reaches beyond the tensor's keys
};

/// Walks tiles, records and k tiles exactly as the kernels do: unmasked tiles count all their keys
/// for all rows, masked ones those inside the record's band.
ExpandedList expand_list(const ForwardList& list);

/// Whether kernels that walk the list count every pair as often as the mask, and write every tile
/// and slot once.
bool is_list_of(const ForwardList& list, const Mask& mask);

/// Draws a tile shape, small so that small masks have many tiles, of up to `most_keys` * 8 keys.
TileShape random_tile_shape(RandomStream& random, std::int32_t most_keys = 10);

}  // namespace magi::test
