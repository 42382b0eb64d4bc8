// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <new>
#include <string>

#include "magi/comm.hpp"

namespace magi {

/// Aborts the group, for a reason that may be short of memory: then a shorter one takes none.
inline void abort_group(Communicator& communicator, const char* reason) noexcept {
  std::string text("out of memory");
  try {
    text = reason;
  } catch (const std::bad_alloc&) {
    // The short text stays.
  }
  communicator.abort(text);
}

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
    abort_group(communicator, error.what());
    throw;
  }
}

}  // namespace magi
