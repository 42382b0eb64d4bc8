// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/schedule/host/forward_list.hpp"
#include "kernels/schedule/host/in_flight_keys.hpp"

namespace magi {

/// Sets the sources that each work of a finished list waits for, and sorts the list by arrival:
/// first the works that wait for none, over all heads, then the others, arrival chunk by arrival
/// chunk. Inside each, the longest still come first.
void order_by_arrival(ForwardList& list, const InFlightKeys& coming, std::int32_t num_ctas);

/// Bit s: source s writes rows of K and V that the work's owner loads. It loads whole k tiles: rows
/// that no query sees are multiplied by 0, so they must be finite by then.
std::uint32_t sources_of(const ForwardList& list, const TileWork& work, const InFlightKeys& coming);

}  // namespace magi
