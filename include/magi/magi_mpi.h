/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MAGI_MPI_H
#define MAGI_MPI_H

/*
 * Ranks of an MPI program as a transport of host memory. The library is magi_mpi, beside libmagi,
 * which links no MPI: link both, or open libmagi_mpi.so.1 at run time.
 */

#include <stdint.h>

#include "magi/comm_vtable.h"
#include "magi/magi_base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MAGI_MPI_WORLD = -1 };

/* Fills *vtable, whose struct_size is set, for magi_communicator_from_vtable, over a copy of
 * `communicator`: what MPI_Comm_c2f gives, or MAGI_MPI_WORLD. Initialises MPI where the program has
 * not, and then ends it at the program's exit, unless a group has failed or was not closed. Waits
 * end deadline_ms (1 to 2^40) after bytes arrived last. Collective. Returns MAGI_VTABLE_...; after
 * one that is not OK magi_mpi_last_error says why. MPI must allow calls of one thread at a time
 * (MPI_THREAD_SERIALIZED), and no other thread may be in MPI during calls of the group. */
MAGI_API int32_t magi_mpi_group_create(int32_t communicator, int64_t deadline_ms,
                                       magi_comm_vtable* vtable);
/* One sentence about this thread's last call of magi_mpi_group_create that failed. */
MAGI_API const char* magi_mpi_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
