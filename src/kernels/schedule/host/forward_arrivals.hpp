// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/schedule/host/forward_list.hpp"
#include "kernels/schedule/host/in_flight_keys.hpp"

namespace magi {

/// Tells each work of a finished list which sources it waits for, and brings the list into the
/// order of their arrival: first the works that wait for none, over all heads, then the others,
/// arrival chunk by arrival chunk. Inside, the longest come first as before.
void order_by_arrival(ForwardList& list, const InFlightKeys& coming, std::int32_t num_ctas);

/// Bit s: source s writes rows of K and V that the work's owner loads. Those are whole k tiles:
/// also rows that nobody sees weigh in, with the weight 0, and must be finite by then.
std::uint32_t sources_of(const ForwardList& list, const TileWork& work, const InFlightKeys& coming);

}  // namespace magi
