// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "comm/rows/row_exchanger.hpp"

namespace magi::comm {

/// Rows of tables with a way by node (RowTable::by_node) go in two legs over `straight`, those of
/// other tables in one. Moves are awaited in the order of the plan's steps; one that is started
/// waits for the first leg of the one before it. Partials are combined where they lie: a sum or
/// merge by node changes the rows of RowMove::from that this rank collects for its node.
std::unique_ptr<RowExchanger> make_hop_exchanger(Communicator& communicator,
                                                 std::unique_ptr<RowExchanger> straight);

}  // namespace magi::comm
