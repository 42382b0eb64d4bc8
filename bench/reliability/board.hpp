// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>

namespace magi::reliability {

inline constexpr std::int32_t kMostRanks = 8;

/// Nanoseconds of the clock that all processes of the machine share.
inline std::int64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

/// What one rank tells; written by its process alone.
struct RankReport {
  std::atomic<std::int64_t> steps;                ///< done
  std::atomic<std::int64_t> error_ns;             ///< when its group failed; 0: it did not
  std::atomic<std::int32_t> has_new_group;        ///< a new group has worked in the same process
  std::atomic<std::int64_t> kib_early, kib_late;  ///< resident memory after a fifth and at the end
  std::array<char, 800> text;  ///< of the error, or why the new group did not work

  void tell(const char* what) {
    std::strncpy(text.data(), what, text.size() - 1);
    text[text.size() - 1] = '\0';
  }
};

/// Memory that the processes of a trial share; zeroed at its start.
struct Board {
  std::atomic<std::int64_t> fault_ns;  ///< when the fault happened
  std::array<RankReport, kMostRanks> ranks;
};

}  // namespace magi::reliability
