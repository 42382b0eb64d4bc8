// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include "magi/error.hpp"

namespace magi::testing {

/// The CommError that `call` throws; adds a failure and returns an empty System error otherwise.
template <typename Call>
CommError catch_comm_error(const Call& call) {
  try {
    call();
  } catch (const CommError& error) {
    return error;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "expected a CommError, got: " << error.what();
    return {"", CommFailure::System};
  }
  ADD_FAILURE() << "expected a CommError, nothing was thrown";
  return {"", CommFailure::System};
}

}  // namespace magi::testing
