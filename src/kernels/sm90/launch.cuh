// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/shared_memory.hpp"

namespace magi::sm90 {

/// Lets a kernel use a `Storage` of shared memory on the current device. Returns its bytes.
template <typename Storage, auto kKernel>
int grant_storage() {
  constexpr int kBytes = static_cast<int>(sizeof(Storage));
  static_assert(kBytes <= 227 * 1024);
  static SharedMemoryGrant grant;
  grant.ensure(kKernel, kBytes);
  return kBytes;
}

}  // namespace magi::sm90
