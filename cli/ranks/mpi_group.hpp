// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>

#include "magi/comm.hpp"

namespace magi::cli {

/// Whether libmagi_mpi is where the loader finds it. Initialises nothing.
bool has_mpi_library();

/// The ranks that mpirun started, over MPI, which libmagi_mpi brings: opened here, not linked.
/// Collective. Throws EnvironmentUnfit where it cannot be opened or MPI refuses.
std::unique_ptr<Communicator> make_mpi_group(std::chrono::seconds deadline);

}  // namespace magi::cli
