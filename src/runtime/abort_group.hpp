// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>

#include "magi/comm.hpp"

namespace magi {

/// Runs `body`; an error that is not the group's own wakes the ranks that would wait for this one.
/// NOTE: exchanges under way must outlive the call: to drop them first would end the group without
/// the reason.
template <typename Body>
void abort_group_on_error(Communicator& communicator, const Body& body) {
  try {
    body();
  } catch (const CommError&) {
    throw;
  } catch (const std::exception& error) {
    communicator.abort(error.what());
    throw;
  }
}

}  // namespace magi
