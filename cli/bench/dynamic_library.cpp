// SPDX-License-Identifier: Apache-2.0
#include "bench/dynamic_library.hpp"

#include <dlfcn.h>

#include <stdexcept>

namespace magi::cli {

DynamicLibrary::DynamicLibrary(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) return;
  }
}

DynamicLibrary::~DynamicLibrary() {
  if (handle_ != nullptr) dlclose(handle_);
}

void* DynamicLibrary::address_of(const char* name) const {
  void* address = dlsym(handle_, name);
  if (address == nullptr) throw std::runtime_error(std::string("a library lacks ") + name);
  return address;
}

}  // namespace magi::cli
