// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "magi/comm.hpp"

namespace magi::comm {

/// The call that makes exchanges of this kind, for messages: "group_cast", ...
inline const char* kind_name(ExchangeKind kind) {
  switch (kind) {
    case ExchangeKind::Cast:
      return "group_cast";
    case ExchangeKind::Sum:
      return "group_reduce(sum)";
    case ExchangeKind::LseMerge:
      return "group_reduce(lse_merge)";
    case ExchangeKind::Other:
      return "another exchange";
  }
  return "an unknown call";
}

/// Whether needed rows go to their owners.
inline bool is_reduce(ExchangeKind kind) {
  return kind == ExchangeKind::Sum || kind == ExchangeKind::LseMerge;
}

}  // namespace magi::comm
