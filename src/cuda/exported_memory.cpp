// SPDX-License-Identifier: Apache-2.0
#include "cuda/exported_memory.hpp"

#include <algorithm>
#include <vector>

#include "base/math.hpp"
#include "cuda/capture.hpp"
#include "cuda/device.hpp"
#include "cuda/stream.hpp"

namespace magi {
namespace {

constexpr unsigned kVersion = 10020;  // of CUDA, since which the calls below exist

/// The driver's calls, resolved once.
struct Driver {
  template <typename Function>
  static Function* find(const char* name) {
    return reinterpret_cast<Function*>(driver_function(name, kVersion));
  }
  decltype(&cuMemGetAllocationGranularity) granularity =
      find<decltype(cuMemGetAllocationGranularity)>("cuMemGetAllocationGranularity");
  decltype(&cuMemCreate) create = find<decltype(cuMemCreate)>("cuMemCreate");
  decltype(&cuMemRelease) release = find<decltype(cuMemRelease)>("cuMemRelease");
  decltype(&cuMemAddressReserve) reserve =
      find<decltype(cuMemAddressReserve)>("cuMemAddressReserve");
  decltype(&cuMemAddressFree) free_address = find<decltype(cuMemAddressFree)>("cuMemAddressFree");
  decltype(&cuMemMap) map = find<decltype(cuMemMap)>("cuMemMap");
  decltype(&cuMemUnmap) unmap = find<decltype(cuMemUnmap)>("cuMemUnmap");
  decltype(&cuMemSetAccess) set_access = find<decltype(cuMemSetAccess)>("cuMemSetAccess");
  decltype(&cuMemExportToShareableHandle) export_handle =
      find<decltype(cuMemExportToShareableHandle)>("cuMemExportToShareableHandle");
  decltype(&cuMemImportFromShareableHandle) import_handle =
      find<decltype(cuMemImportFromShareableHandle)>("cuMemImportFromShareableHandle");
};

const Driver& driver() {
  static const Driver table;
  return table;
}

CUmemAllocationProp properties_of(std::int32_t device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

/// The driver's calls need a device that the runtime has begun to use.
void begin_device() { cuda_check(cudaFree(nullptr), "cudaFree"); }

void clear_sync(void* data, std::size_t size_bytes) {
  const Stream stream;
  cuda_check(cudaMemsetAsync(data, 0, size_bytes, stream.handle()), "cudaMemsetAsync");
  stream.wait_sync();
}

}  // namespace

std::unique_ptr<MappedMemory> MappedMemory::create(std::size_t size_bytes, std::int32_t device,
                                                   std::span<const std::int32_t> devices) {
  const DeviceScope scope(device);
  const UncapturedScope uncaptured;
  begin_device();
  const CUmemAllocationProp properties = properties_of(device);
  std::size_t unit = 0;
  driver_check(driver().granularity(&unit, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
               "cuMemGetAllocationGranularity");
  std::unique_ptr<MappedMemory> memory(new MappedMemory());
  memory->size_bytes_ = align_up(std::max<std::size_t>(size_bytes, 1), unit);
  driver_check(driver().create(&memory->handle_, memory->size_bytes_, &properties, 0),
               "cuMemCreate");
  memory->has_handle_ = true;
  memory->map(devices);
  clear_sync(memory->data(), memory->size_bytes_);
  return memory;
}

std::unique_ptr<MappedMemory> MappedMemory::import(const FileDescriptor& fd, std::size_t size_bytes,
                                                   std::int32_t device) {
  const DeviceScope scope(device);
  const UncapturedScope uncaptured;
  begin_device();
  std::unique_ptr<MappedMemory> memory(new MappedMemory());
  memory->size_bytes_ = size_bytes;
  driver_check(
      driver().import_handle(&memory->handle_, std::bit_cast<void*>(std::intptr_t{fd.get()}),
                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
      "cuMemImportFromShareableHandle");
  memory->has_handle_ = true;
  memory->map({&device, 1});
  return memory;
}

void MappedMemory::map(std::span<const std::int32_t> devices) {
  driver_check(driver().reserve(&address_, size_bytes_, 0, 0, 0), "cuMemAddressReserve");
  driver_check(driver().map(address_, size_bytes_, 0, handle_, 0), "cuMemMap");
  is_mapped_ = true;
  std::vector<CUmemAccessDesc> access;
  for (const std::int32_t device : devices) {
    access.push_back({.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                      .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  }
  driver_check(driver().set_access(address_, size_bytes_, access.data(), access.size()),
               "cuMemSetAccess");
}

MappedMemory::~MappedMemory() {
  const UncapturedScope uncaptured;
  if (is_mapped_) static_cast<void>(driver().unmap(address_, size_bytes_));
  if (address_ != 0) static_cast<void>(driver().free_address(address_, size_bytes_));
  if (has_handle_) static_cast<void>(driver().release(handle_));
}

FileDescriptor MappedMemory::export_fd() const {
  int fd = -1;
  driver_check(driver().export_handle(&fd, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
               "cuMemExportToShareableHandle");
  return FileDescriptor(fd);
}

}  // namespace magi
