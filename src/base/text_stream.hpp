// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ios>
#include <sstream>

namespace magi {

/// A stream for text that is a result: std::bad_alloc where it cannot grow. Streams as they come
/// keep that to themselves and give less text.
inline std::ostringstream text_stream() {
  std::ostringstream text;
  text.exceptions(std::ios::badbit);
  return text;
}

}  // namespace magi
