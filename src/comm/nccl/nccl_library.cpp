// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_library.hpp"

#include <dlfcn.h>

#include "magi/error.hpp"

namespace magi::comm {
namespace {

constexpr const char* kSoname = "libnccl.so.2";

[[noreturn]] void refuse(const std::string& text) { throw CommError(text, CommFailure::System); }

void* open_library(const std::string& path) {
  if (!path.empty()) {
    if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  } else {
    // One NCCL in a process: two would each take GPU memory and threads of their own.
    if (void* loaded = dlopen(kSoname, RTLD_NOW | RTLD_NOLOAD)) return loaded;
    if (void* library = dlopen(kSoname, RTLD_NOW | RTLD_LOCAL)) return library;
  }
  const char* reason = dlerror();
  refuse("NCCL cannot be opened: " + std::string(reason != nullptr ? reason : "unknown reason") +
         "; allowed: a process that has loaded it, or " + kSoname +
         " where the loader finds it, or its path");
}

/// The path of the library, for messages.
std::string path_of(void* function) {
  Dl_info info{};
  return dladdr(function, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : kSoname;
}

template <typename Function>
void resolve(void* library, const char* name, Function*& function) {
  void* symbol = dlsym(library, name);
  if (symbol == nullptr) refuse("NCCL lacks the function " + std::string(name));
  function = reinterpret_cast<Function*>(symbol);
}

}  // namespace

std::string nccl_version_text(std::int32_t version) {
  // Before 2.9 the numbers had one digit less.
  const std::int32_t scale = version < 10000 ? 1000 : 10000;
  return std::to_string(version / scale) + "." + std::to_string(version % scale / 100) + "." +
         std::to_string(version % 100);
}

NcclLibrary::NcclLibrary(const std::string& path) {
  void* library = open_library(path);
  NcclResult (*get_version)(int*) = nullptr;
  resolve(library, "ncclGetVersion", get_version);
  path_ = path_of(reinterpret_cast<void*>(get_version));
  if (get_version(&version_) != NcclResult::Success || version_ < kOldestNccl) {
    refuse("NCCL in " + path_ + " has version " + nccl_version_text(version_) +
           "; allowed: " + nccl_version_text(kOldestNccl) + " and later");
  }
  resolve(library, "ncclGetUniqueId", get_unique_id);
  resolve(library, "ncclCommInitRankConfig", comm_init_rank_config);
  resolve(library, "ncclCommFinalize", comm_finalize);
  resolve(library, "ncclCommDestroy", comm_destroy);
  resolve(library, "ncclCommAbort", comm_abort);
  resolve(library, "ncclCommGetAsyncError", comm_get_async_error);
  resolve(library, "ncclGetErrorString", get_error_string);
  resolve(library, "ncclGetLastError", get_last_error);
  resolve(library, "ncclGroupStart", group_start);
  resolve(library, "ncclGroupEnd", group_end);
  resolve(library, "ncclSend", send);
  resolve(library, "ncclRecv", recv);
}

}  // namespace magi::comm
