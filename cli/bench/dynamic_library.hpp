// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace magi::cli {

/// A shared library opened at run time; stays open while it lives.
class DynamicLibrary {
 public:
  /// Opens the first of `names` that there is.
  explicit DynamicLibrary(const std::vector<std::string>& names);
  ~DynamicLibrary();
  DynamicLibrary(const DynamicLibrary&) = delete;
  DynamicLibrary& operator=(const DynamicLibrary&) = delete;

  bool is_open() const { return handle_ != nullptr; }
  /// Throws std::runtime_error naming a function that the library lacks.
  template <typename Function>
  void find(const char* name, Function*& function) const {
    function = reinterpret_cast<Function*>(address_of(name));
  }

 private:
  void* address_of(const char* name) const;

  void* handle_ = nullptr;
};

}  // namespace magi::cli
