/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MAGI_COMM_VTABLE_H
#define MAGI_COMM_VTABLE_H

/*
 * A communicator as a table of C functions: lets a program in any language supply the transport,
 * such as a process group of its framework. Rules:
 * - Every rank of a group has its own table. Calls come from one thread at a time, except abort,
 *   which may come from any.
 * - Functions that return int32_t return a status, MAGI_VTABLE_...; after one that is not OK,
 *   last_error says why. Nothing throws or unwinds across the table.
 * - Collective calls come in the same order on all ranks. Waits end at a deadline that the supplier
 *   chooses.
 * - Structs start with struct_size = sizeof(the struct).
 */

#include <stddef.h>
#include <stdint.h>

#include "magi/magi_tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The numbers of the library's status codes. */
enum {
  MAGI_VTABLE_OK = 0,
  MAGI_VTABLE_INVALID_ARGUMENT = 1,
  MAGI_VTABLE_CUDA_ERROR = 2,
  MAGI_VTABLE_COMM_ERROR = 3,
  MAGI_VTABLE_INTERNAL_ERROR = 4
};

enum {
  MAGI_EXCHANGE_CAST = 0,
  MAGI_EXCHANGE_SUM = 1,
  MAGI_EXCHANGE_LSE_MERGE = 2,
  MAGI_EXCHANGE_OTHER = 3 /* of all_to_all_v alone: neither it nor its bytes are counted */
};

/* Rows [row, row + num_rows) of the local tensor, exchanged with `peer`. Records of one pair of
 * ranks come in the same order on both sides. */
typedef struct magi_peer_rows {
  int32_t peer;
  int32_t row;
  int32_t num_rows;
} magi_peer_rows;

/* One asynchronous exchange. A cast moves owned rows of inputs to needed rows of outputs; sum and
 * lse merge move needed rows of inputs (partials) to owned rows of outputs, which they are combined
 * with, partials in rank order. Tables and the tensor structs live during the call; the data live
 * until wait returned. */
typedef struct magi_exchange_args {
  size_t struct_size;
  const magi_tensor* inputs;  /* [num_tensors] */
  const magi_tensor* outputs; /* [num_tensors]; lse merge: pairs {out, lse} */
  int32_t num_tensors;
  int32_t kind; /* MAGI_EXCHANGE_... */
  const magi_peer_rows* owned;
  int64_t num_owned;
  const magi_peer_rows* needed;
  int64_t num_needed;
  uint64_t plan_digest; /* equal on all ranks of an exchange, else a mismatch is reported */
  int32_t wave;
} magi_exchange_args;

/* Bytes of every rank for every rank in device memory. Tables live during the call. */
typedef struct magi_all_to_all_args {
  size_t struct_size;
  const void* send;             /* parts for rank 0, 1, ... without gaps */
  void* receive;                /* parts from rank 0, 1, ... without gaps */
  const int64_t* send_bytes;    /* [num_ranks] */
  const int64_t* receive_bytes; /* [num_ranks] */
  int32_t device;               /* CUDA ordinal */
  int32_t kind;                 /* MAGI_EXCHANGE_CAST, _SUM or _OTHER: what is counted */
  uint64_t plan_digest;         /* for messages, as is the wave */
  int32_t wave;
} magi_all_to_all_args;

typedef struct magi_exchange_counters {
  size_t struct_size;
  int64_t* bytes_to_peer; /* [num_ranks], room given by the caller: payload bytes sent so far */
  int64_t messages;
  int64_t casts;
  int64_t reduces;
} magi_exchange_counters;

/* Called once per rank, in rank order, during an allgather. */
typedef void (*magi_gather_sink)(void* sink_context, int32_t rank, const void* bytes,
                                 size_t num_bytes);

typedef struct magi_comm_vtable {
  size_t struct_size;
  void* context; /* passed to every function */
  int32_t rank;
  int32_t num_ranks;
  const char* backend; /* lives as long as the table */

  /* Everyone's bytes to everyone; sizes may differ. Blocks. */
  int32_t (*allgather)(void* context, const void* bytes, size_t num_bytes, magi_gather_sink sink,
                       void* sink_context);
  /* Starts an exchange; several may be under way. */
  int32_t (*start)(void* context, const magi_exchange_args* args, void** exchange);
  /* Blocks until the exchange is complete on this rank; any order. */
  int32_t (*wait)(void* context, void* exchange);
  /* Frees an exchange, once, whether waited for or not. */
  void (*release)(void* context, void* exchange);
  /* Wakes every rank that waits in the group. */
  void (*abort)(void* context, const char* reason);
  int32_t (*counters)(void* context, magi_exchange_counters* counters);
  /* Collective, orderly end. */
  int32_t (*close)(void* context);
  /* Frees the context; local, silent. */
  void (*destroy)(void* context);
  /* One sentence about the last status that was not OK, and for MAGI_VTABLE_COMM_ERROR in *failure
   * what went wrong: 1 timeout, 2 peer died, 3 plan mismatch, 4 aborted, 5 system. */
  const char* (*last_error)(void* context, int32_t* failure);

  /* Optional: NULL, or a struct_size that ends before it, where the group moves no device memory.
   * Enqueues an exchange on `stream` (a cudaStream_t): what is enqueued there later sees the
   * received bytes and may overwrite the sent ones. Does not wait for the device. */
  int32_t (*all_to_all_v)(void* context, const magi_all_to_all_args* args, void* stream);
} magi_comm_vtable;

/* Size of the table before optional entries were added; a table may end there. */
#define MAGI_COMM_VTABLE_MIN_SIZE offsetof(magi_comm_vtable, all_to_all_v)

#ifdef __cplusplus
}
#endif

#endif
