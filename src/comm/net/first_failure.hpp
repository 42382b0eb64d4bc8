// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>
#include <new>
#include <optional>
#include <string>

#include "magi/error.hpp"

namespace magi::comm {

/// The first failure of a rank's group, which every later call throws. For any thread, and for one
/// that has no memory left too.
class FirstFailure {
 public:
  /// Returns whether this is the first.
  bool set(const CommError& error) noexcept {
    const std::lock_guard lock(mutex_);
    if (error_) return false;
    error_.emplace(error);  // copying takes no memory
    return true;
  }
  /// The same with a text such as "rank 1 aborted: REASON".
  bool set(std::int32_t rank, const char* what, const char* reason, CommFailure failure) noexcept {
    try {
      return set({"rank " + std::to_string(rank) + what + reason, failure});
    } catch (const std::bad_alloc&) {
      return set(without_memory_);
    }
  }
  std::optional<CommError> get() const {
    const std::lock_guard lock(mutex_);
    return error_;
  }
  bool is_set() const { return get().has_value(); }
  void check() const {
    if (const auto error = get()) throw CommError(*error);
  }

 private:
  mutable std::mutex mutex_;
  std::optional<CommError> error_;
  const CommError without_memory_{"the group has failed, and memory was out", CommFailure::Aborted};
};

}  // namespace magi::comm
