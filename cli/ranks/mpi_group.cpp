// SPDX-License-Identifier: Apache-2.0
#include "ranks/mpi_group.hpp"

#include <dlfcn.h>

#include <string>

#include "common/files.hpp"
#include "magi/magi_mpi.h"

namespace magi::cli {
namespace {

constexpr const char* kLibrary = "libmagi_mpi.so.1";

/// Never closed: MPI ends with the process. Null where it cannot be opened.
void* mpi_library() {
  static void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  return library;
}

template <typename Function>
Function* find(const char* name) {
  void* const address = ::dlsym(mpi_library(), name);
  if (address == nullptr) {
    throw EnvironmentUnfit(std::string(kLibrary) + " lacks the function " + name);
  }
  return reinterpret_cast<Function*>(address);
}

}  // namespace

bool has_mpi_library() { return mpi_library() != nullptr; }

std::unique_ptr<Communicator> make_mpi_group(std::chrono::seconds deadline) {
  if (!has_mpi_library()) {
    throw EnvironmentUnfit(std::string("the transport mpi needs ") + kLibrary +
                           ", which cannot be opened; allowed: shm");
  }
  auto* const create = find<decltype(magi_mpi_group_create)>("magi_mpi_group_create");
  auto* const last_error = find<decltype(magi_mpi_last_error)>("magi_mpi_last_error");
  magi_comm_vtable table{};
  table.struct_size = sizeof table;
  const std::int64_t deadline_ms = std::chrono::milliseconds(deadline).count();
  if (create(MAGI_MPI_WORLD, deadline_ms, &table) != MAGI_VTABLE_OK) {
    throw EnvironmentUnfit(last_error());
  }
  return make_vtable_group(table);
}

}  // namespace magi::cli
