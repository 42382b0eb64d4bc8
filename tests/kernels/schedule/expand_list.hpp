// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/schedule/host/forward_list.hpp"

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

}  // namespace magi::test
