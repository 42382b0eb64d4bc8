// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <new>

#include "magi/comm.hpp"
#include "magi/error.hpp"

namespace magi {

/// Aborts the group, for a reason that may be short of memory.
inline void abort_group(Communicator& communicator, const char* reason) noexcept {
  try {
    communicator.abort(reason);
  } catch (const std::bad_alloc&) {
    communicator.abort("out of memory");  // so short that it takes none
  }
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

/// Does the same for what moves no rows yet: after a refusal (InvalidArgument) the group is usable.
template <typename Body>
void abort_group_unless_refused(Communicator& communicator, const Body& body) {
  std::exception_ptr refusal;
  abort_group_on_error(communicator, [&] {
    try {
      body();
    } catch (const InvalidArgument&) {
      refusal = std::current_exception();
    }
  });
  if (refusal != nullptr) std::rethrow_exception(refusal);
}

}  // namespace magi
