// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/rows/row_memory.hpp"

namespace magi::comm {

/// RowMemory::combine in host memory.
void combine_on_host(const Partials& partials);

}  // namespace magi::comm
