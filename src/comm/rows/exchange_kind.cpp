// SPDX-License-Identifier: Apache-2.0
#include "comm/rows/exchange_kind.hpp"

namespace magi::comm {

const char* kind_name(ExchangeKind kind) {
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

}  // namespace magi::comm
