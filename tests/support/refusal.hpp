// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "magi/error.hpp"

namespace magi::testing {

/// The message of the InvalidArgument that `call` throws, "accepted" where it throws none.
template <typename Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace magi::testing
