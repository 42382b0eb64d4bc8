/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MAGI_COMM_VTABLE_H
#define MAGI_COMM_VTABLE_H

/*
 * A communicator as a table of C functions: lets a program in any language supply the transport,
 * such as a process group of its framework. A supplier moves bytes: rows, their order, sums and
 * merges are the library's. Rules:
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

#ifdef __cplusplus
extern "C" {
#endif

/* The numbers of the library's status codes. */
enum {
  MAGI_VTABLE_OK = 0,
  MAGI_VTABLE_DONE = 64, /* see MAGI_COMM_ANSWERS_DONE */
  MAGI_VTABLE_INVALID_ARGUMENT = 1,
  MAGI_VTABLE_CUDA_ERROR = 2,
  MAGI_VTABLE_COMM_ERROR = 3,
  MAGI_VTABLE_INTERNAL_ERROR = 4
};

/* What an exchange is for. */
enum {
  MAGI_EXCHANGE_CAST = 0,
  MAGI_EXCHANGE_SUM = 1,
  MAGI_EXCHANGE_LSE_MERGE = 2,
  MAGI_EXCHANGE_OTHER = 3
};

/* Bytes of every rank for every rank. The struct and the arrays live during the call; the memory at
 * send and receive lives until wait returned, in device memory as the stream's order says. */
typedef struct magi_byte_exchange {
  size_t struct_size;
  const void* send;             /* parts for rank 0, 1, ... without gaps */
  void* receive;                /* parts from rank 0, 1, ... without gaps */
  const int64_t* send_bytes;    /* [num_ranks] */
  const int64_t* receive_bytes; /* [num_ranks] */
  int32_t device;               /* -1: host memory; else a CUDA ordinal */
  int32_t kind;                 /* MAGI_EXCHANGE_...; for messages, as are the four below */
  uint64_t plan_digest;
  uint64_t content; /* what the bytes mean */
  int32_t stage;
  uint64_t options; /* what the call is given besides the plan; 0: not known */
} magi_byte_exchange;

/* Called once per rank, in rank order, during an allgather. */
typedef void (*magi_gather_sink)(void* sink_context, int32_t rank, const void* bytes,
                                 size_t num_bytes);

enum {
  MAGI_COMM_MOVES_DEVICE_MEMORY = 1,
  /* Ranks of an exchange of host memory whose kind, plan_digest, content, stage, options or sizes
   * differ are reported by the supplier. Without it the library compares them, by a small exchange
   * of its own before each one. */
  MAGI_COMM_COMPARES_EXCHANGES = 2,
  /* Functions return MAGI_VTABLE_DONE where all went well; MAGI_VTABLE_OK means that the runtime
   * behind them cut one short, as those of languages do that give 0 then. */
  MAGI_COMM_ANSWERS_DONE = 4
};

typedef struct magi_comm_vtable {
  size_t struct_size;
  void* context; /* passed to every function */
  int32_t rank;
  int32_t num_ranks;
  const char* backend; /* lives as long as the table */
  int32_t features;    /* MAGI_COMM_..., or 0 */

  /* Everyone's bytes to everyone; sizes may differ. Blocks. */
  int32_t (*allgather)(void* context, const void* bytes, size_t num_bytes, magi_gather_sink sink,
                       void* sink_context);
  /* Starts an exchange; several may be under way. In device memory it is enqueued on `stream` (a
   * cudaStream_t): what is enqueued there later sees the received bytes and may overwrite the sent
   * ones; nothing waits for the device. *exchange may be NULL where nothing is left to wait for. */
  int32_t (*start_bytes)(void* context, const magi_byte_exchange* args, void* stream,
                         void** exchange);
  /* Blocks until an exchange of host memory is complete on this rank; any order. */
  int32_t (*wait)(void* context, void* exchange);
  /* Frees an exchange, once, whether waited for or not. */
  void (*release)(void* context, void* exchange);
  /* Wakes every rank that waits in the group. */
  void (*abort)(void* context, const char* reason);
  /* Collective, orderly end. */
  int32_t (*close)(void* context);
  /* Frees the context; local, silent. */
  void (*destroy)(void* context);
  /* One sentence about the last status that was not OK, and for MAGI_VTABLE_COMM_ERROR in *failure
   * what went wrong: 1 timeout, 2 peer died, 3 plan mismatch, 4 aborted, 5 system. */
  const char* (*last_error)(void* context, int32_t* failure);
} magi_comm_vtable;

#ifdef __cplusplus
}
#endif

#endif
