// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "magi/comm.hpp"

namespace magi::comm {

/// The call that makes exchanges of this kind, for messages: "group_cast", ...
const char* kind_name(ExchangeKind kind);

}  // namespace magi::comm
