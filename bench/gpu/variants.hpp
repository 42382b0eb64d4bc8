// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "kernels/sm90/forward/launch.hpp"

namespace magi::bench {

/// A forward instance that competes with the library's.
struct Variant {
  const char* name;
  sm90::ForwardInstance instance;
};

std::span<const Variant> forward_variants();

}  // namespace magi::bench
