// SPDX-License-Identifier: Apache-2.0
// Allocation functions that fail when asked to, for LD_PRELOAD: bench/python/reliability_alloc
// builds it. Only calls from the watched library and from the C++ runtime fail, so that what is
// tested is how that library and the Python package over it end.
#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {

constexpr int kMaxRanges = 64;

struct Range {
  std::uintptr_t begin = 0, end = 0;
};

Range ranges[kMaxRanges];
int num_ranges = 0;
std::atomic<long> calls_left{-1};  // -1: nothing fails
std::atomic<long> num_failed{0};

/// Whether this call, from `caller`, is the one to fail.
bool is_failing(const void* caller) {
  if (calls_left.load(std::memory_order_relaxed) < 0) return false;
  const auto address = reinterpret_cast<std::uintptr_t>(caller);
  for (int i = 0; i < num_ranges; ++i) {
    if (address < ranges[i].begin || address >= ranges[i].end) continue;
    if (calls_left.fetch_sub(1) != 0) return false;
    num_failed.fetch_add(1);
    return true;
  }
  return false;
}

int add_ranges(dl_phdr_info* info, std::size_t /*size*/, void* wanted) {
  if (std::strstr(info->dlpi_name, static_cast<const char*>(wanted)) == nullptr) return 0;
  for (int i = 0; i < info->dlpi_phnum && num_ranges < kMaxRanges; ++i) {
    const auto& segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0) continue;
    const std::uintptr_t begin = info->dlpi_addr + segment.p_vaddr;
    ranges[num_ranges++] = {.begin = begin, .end = begin + segment.p_memsz};
  }
  return 0;
}

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

void* new_bytes(std::size_t size, std::size_t alignment, const void* caller) {
  if (!is_failing(caller)) {
    void* found = nullptr;
    if (alignment <= alignof(std::max_align_t)) {
      found = std::malloc(size == 0 ? 1 : size);
    } else if (posix_memalign(&found, alignment, size) != 0) {
      found = nullptr;
    }
    if (found != nullptr) return found;
  }
  return nullptr;
}

void* new_or_throw(std::size_t size, std::size_t alignment, const void* caller) {
  void* found = new_bytes(size, alignment, caller);
  if (found == nullptr) throw std::bad_alloc();
  return found;
}

}  // namespace

extern "C" {

/// Watches calls from libraries whose path holds `name`; how many segments of code that are.
int failing_watch(const char* name) {
  const int before = num_ranges;
  dl_iterate_phdr(add_ranges, const_cast<char*>(name));
  return num_ranges - before;
}

/// The call after `count` others fails, once; -1: none.
void failing_arm(long count) { calls_left.store(count); }
long failing_count() { return num_failed.load(); }

void* calloc(std::size_t count, std::size_t size) {
  static auto* function = static_cast<void* (*)(std::size_t, std::size_t)>(nullptr);
  static bool is_searching = false;
  if (function == nullptr) {
    // dlsym allocates: what it asks for while it looks comes from here, zeroed, and is kept.
    alignas(std::max_align_t) static char early[1 << 14];
    static std::size_t used = 0;
    if (is_searching) {
      const std::size_t bytes = (count * size + 15) / 16 * 16;
      void* found = early + used;
      used += bytes;
      return used <= sizeof(early) ? found : nullptr;
    }
    is_searching = true;
    function = next<void*(std::size_t, std::size_t)>("calloc");
    is_searching = false;
  }
  return is_failing(__builtin_return_address(0)) ? nullptr : function(count, size);
}

void* malloc(std::size_t size) {
  static auto* function = next<void*(std::size_t)>("malloc");
  return is_failing(__builtin_return_address(0)) ? nullptr : function(size);
}

void* realloc(void* data, std::size_t size) {
  static auto* function = next<void*(void*, std::size_t)>("realloc");
  return is_failing(__builtin_return_address(0)) ? nullptr : function(data, size);
}

}  // extern "C"

void* operator new(std::size_t size) { return new_or_throw(size, 1, __builtin_return_address(0)); }
void* operator new[](std::size_t size) {
  return new_or_throw(size, 1, __builtin_return_address(0));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return new_bytes(size, 1, __builtin_return_address(0));
}
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return new_bytes(size, 1, __builtin_return_address(0));
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  return new_or_throw(size, static_cast<std::size_t>(alignment), __builtin_return_address(0));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return new_or_throw(size, static_cast<std::size_t>(alignment), __builtin_return_address(0));
}
void operator delete(void* data) noexcept { std::free(data); }
void operator delete[](void* data) noexcept { std::free(data); }
void operator delete(void* data, std::size_t) noexcept { std::free(data); }
void operator delete[](void* data, std::size_t) noexcept { std::free(data); }
void operator delete(void* data, std::align_val_t) noexcept { std::free(data); }
void operator delete[](void* data, std::align_val_t) noexcept { std::free(data); }
void operator delete(void* data, std::size_t, std::align_val_t) noexcept { std::free(data); }
void operator delete[](void* data, std::size_t, std::align_val_t) noexcept { std::free(data); }
