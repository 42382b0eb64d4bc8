// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "magi/magi.h"

namespace magi::capi {

/// The status of the exception being handled; keeps its message for the calling thread.
magi_status record_current_exception() noexcept;

/// Runs the body of an ABI call: no exception leaves.
template <typename Body>
magi_status guarded(const Body& body) noexcept {
  try {
    body();
    return MAGI_OK;
  } catch (...) {
    return record_current_exception();
  }
}

}  // namespace magi::capi
