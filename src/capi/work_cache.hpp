// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "magi/tensor.hpp"

namespace magi::capi {

/// The values that a schedule of one mask depends on besides the mask.
struct WorkKey {
  using Shape = std::array<std::int64_t, 3>;
  Shape q, k, v;
  DType type = DType::BFloat16;
  DType dout_type = DType::BFloat16;  ///< backward only
  std::int32_t device = 0;
  std::int32_t sm_margin = 0;
  bool is_fast_backward = false;
  std::string backend;  ///< empty: the library's own for the device

  friend bool operator==(const WorkKey&, const WorkKey&) = default;
};

/// The prepared objects of one mask, the last used first. Safe from several threads; what is given
/// up lives on where a caller still holds it.
template <typename Work>
class WorkCache {
 public:
  /// The number of calls that the Python package keeps for calls of one mask.
  static constexpr std::size_t kCapacity = 256;

  /// Calls make() outside the lock where the key is new, to no avail where another thread was
  /// first.
  template <typename Make>
  std::shared_ptr<const Work> find_or_make(const WorkKey& key, const Make& make) {
    if (auto found = find(key)) return found;
    std::shared_ptr<const Work> made = make();
    std::shared_ptr<const Work> given_up;  // destroyed after the lock is gone
    const std::lock_guard lock(mutex_);
    if (auto found = find_locked(key)) return found;
    if (entries_.size() == kCapacity) {
      given_up = std::move(entries_.back().work);
      entries_.pop_back();
    }
    entries_.insert(entries_.begin(), {key, made});
    return made;
  }

  std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return entries_.size();
  }

 private:
  struct Entry {
    WorkKey key;
    std::shared_ptr<const Work> work;
  };

  std::shared_ptr<const Work> find(const WorkKey& key) {
    const std::lock_guard lock(mutex_);
    return find_locked(key);
  }

  std::shared_ptr<const Work> find_locked(const WorkKey& key) {
    const auto found = std::find_if(entries_.begin(), entries_.end(),
                                    [&](const Entry& entry) { return entry.key == key; });
    if (found == entries_.end()) return nullptr;
    std::rotate(entries_.begin(), found, found + 1);
    return entries_.front().work;
  }

  mutable std::mutex mutex_;
  std::vector<Entry> entries_;  ///< used last first
};

}  // namespace magi::capi
