// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "magi/comm.hpp"

namespace magi::comm {

/// The call that makes exchanges of this kind, for messages: "group_cast", ...
const char* kind_name(ExchangeKind kind);

/// Whether needed rows go to their owners.
inline bool is_reduce(ExchangeKind kind) {
  return kind == ExchangeKind::Sum || kind == ExchangeKind::LseMerge;
}

}  // namespace magi::comm
