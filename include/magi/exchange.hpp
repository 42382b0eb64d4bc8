// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

// Who exchanges which rows: plans produce these lists, communicators carry them out.
namespace magi {

/// Rows that this rank exchanges with `peer`: rows [row, row + num_rows) of the local tensor.
/// Records of one pair come in the same order on both sides. Own rows have peer == this rank.
struct PeerRows {
  std::int32_t peer = 0;
  std::int32_t row = 0;
  std::int32_t num_rows = 0;
  friend bool operator==(const PeerRows&, const PeerRows&) = default;
};

/// One rank's side of the transfers of a segment: what it owns and others need, what it needs and
/// others own. A cast moves owned -> needed, the reduce needed -> owned.
struct RowExchange {
  std::vector<PeerRows> owned = {};
  std::vector<PeerRows> needed = {};
  friend bool operator==(const RowExchange&, const RowExchange&) = default;
};

}  // namespace magi
