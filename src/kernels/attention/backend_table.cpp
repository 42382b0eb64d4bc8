// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <mutex>

#include "base/check.hpp"
#include "kernels/attention/built_in.hpp"

namespace magi {
namespace {

using Backend = std::shared_ptr<const AttentionBackend>;

/// The backends of the process, the library's own first.
class BackendTable {
 public:
  BackendTable() {
    // A Hopper GPU is served by the first that does so, unless the other is asked for.
    for (const Backend& backend : {cpu_backend(), sm90_backend(), mma_backend()}) {
      if (backend != nullptr) built_in_.push_back(backend);
    }
    backends_ = built_in_;
  }

  Backend for_device(std::int32_t device) const {
    for (const Backend& backend : built_in_) {
      if (backend->serves(device)) return backend;
    }
    refuse_device(device);
  }

  Backend named(const std::string& name) const {
    const std::lock_guard lock(mutex_);
    const std::size_t b = place_of(name);
    if (b == backends_.size()) throw invalid("backend", name, names_locked());
    return backends_[b];
  }

  void add(const std::string& name, const std::function<Backend()>& make) {
    const std::lock_guard lock(mutex_);
    if (name.empty()) throw invalid("backend.name", "empty", "a name");
    if (place_of(name) < backends_.size()) {
      throw invalid("backend.name", name, "others than " + names_locked());
    }
    backends_.reserve(backends_.size() + 1);  // nothing fails once make() has taken a context
    backends_.push_back(make());
  }

  void remove(const std::string& name) {
    Backend removed;  // what it ends may ask for backends: it goes after the lock
    const std::lock_guard lock(mutex_);
    const std::size_t b = place_of(name);
    if (b < built_in_.size() || b == backends_.size()) {
      throw invalid("backend", name, "one that was added");
    }
    removed = std::move(backends_[b]);
    backends_.erase(backends_.begin() + static_cast<std::ptrdiff_t>(b));
  }

  std::vector<std::string> names() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> names;
    for (const Backend& backend : backends_) names.push_back(backend->name());
    return names;
  }

 private:
  std::size_t place_of(const std::string& name) const {
    const auto found = std::ranges::find(backends_, name, &AttentionBackend::name);
    return static_cast<std::size_t>(found - backends_.begin());
  }
  std::string names_locked() const {
    std::string text;
    for (const Backend& backend : backends_) text += (text.empty() ? "" : ", ") + backend->name();
    return text;
  }

  std::vector<Backend> built_in_;  ///< the library's, the first of all; never changes
  mutable std::mutex mutex_;
  std::vector<Backend> backends_;
};

BackendTable& table() {
  static auto& table = *new BackendTable;  // never destroyed: supplied code may be gone by then
  return table;
}

}  // namespace

AttentionLimits attention_limits(std::int32_t device) { return find_backend("", device)->limits(); }

std::shared_ptr<const AttentionBackend> find_backend(const std::string& name, std::int32_t device) {
  if (name.empty()) return table().for_device(device);
  Backend backend = table().named(name);
  if (!backend->serves(device)) {
    throw invalid("q.device", device, "devices that the backend " + name + " serves");
  }
  return backend;
}

void add_backend(const std::string& name, const std::function<Backend()>& make) {
  table().add(name, make);
}
void remove_backend(const std::string& name) { table().remove(name); }
std::vector<std::string> backend_names() { return table().names(); }

}  // namespace magi
