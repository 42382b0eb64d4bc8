/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MAGI_ATTENTION_BACKEND_H
#define MAGI_ATTENTION_BACKEND_H

/*
 * Attention kernels as a table of C functions: lets a program in any language supply the attention
 * that the library plans, splits over ranks and calls. Rules:
 * - A backend computes plain attention: it writes its results whole. The library merges results of
 *   several sets of keys, adds gradients and converts types, and refuses by name what the limits
 *   exclude before the backend is called.
 * - Functions that return int32_t return a status, MAGI_OK or another of magi/magi_base.h; after
 *   one that is not MAGI_OK, last_error says why. Nothing throws or unwinds across the table.
 * - Calls may come from any thread, several at once for different calls.
 * - Structs and arrays that a function is given live during the call.
 */

#include <stddef.h>
#include <stdint.h>

#include "magi/magi_attention.h"
#include "magi/magi_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What forward or backward will be called for, any number of times. */
typedef struct magi_attention_problem {
  size_t struct_size;
  const magi_tensor* q; /* shapes, type and device; data and strides say nothing */
  const magi_tensor* k;
  const magi_tensor* v;
  /* [num_slices, 6]: q begin, q end, k begin, k end, d_min, d_max. Query row i sees key row j of a
   * slice where d_min <= j - i <= d_max; bounds of -2^30 and 2^30 bind nothing. */
  const int32_t* slices;
  int64_t num_slices;
  int32_t is_backward;
  int32_t is_deterministic; /* backward: all results have the same bits in every call */
  int32_t sm_margin;        /* on a GPU: multiprocessors left to others */
} magi_attention_problem;

typedef struct magi_attention_backend {
  size_t struct_size;
  void* context;      /* passed to every function */
  const char* name;   /* unique in the process; copied */
  int32_t serves_cpu; /* 1: computes on tensors in host memory */
  int32_t serves_gpu; /* 1: computes on tensors of any GPU that it is given */
  magi_attention_limits limits;

  /* Prepares a problem; *handle, which may stay NULL, is passed to its calls. */
  int32_t (*plan)(void* context, const magi_attention_problem* problem, void** handle);
  /* Writes out [rows_q, heads_q, dim_v], in the type of q or where the limits say so in float32,
   * lse [rows_q, heads_q] in float32 (float64), and max_logits if given. Rows without keys have
   * out 0 and lse -inf, with a sink lse of the sink. Last dims are contiguous. On a GPU the work is
   * enqueued on `stream` (a cudaStream_t). */
  int32_t (*forward)(void* context, void* handle, const magi_attention_inputs* inputs,
                     const magi_attention_result* result, void* stream);
  /* Writes dq, dk, dv and dsink if given. `result` holds out and lse over all keys of the rows,
   * which may be more than those of the problem: the weight of a visible pair is
   * exp(score - lse). */
  int32_t (*backward)(void* context, void* handle, const magi_attention_inputs* inputs,
                      const magi_attention_result* result,
                      const magi_attention_gradients* gradients, void* stream);
  /* Frees a handle, once. */
  void (*release)(void* context, void* handle);
  /* One sentence about the calling thread's last status that was not MAGI_OK. */
  const char* (*last_error)(void* context);
  /* Optional: frees the context when nothing uses the backend any more. */
  void (*destroy)(void* context);
} magi_attention_backend;

/* Adds a backend to the process; options and inputs name it. The table is copied; where the call
 * fails, the context stays the caller's. */
MAGI_API magi_status magi_attention_backend_register(const magi_attention_backend* backend);
/* Takes it out; what was made with it goes on using it. */
MAGI_API magi_status magi_attention_backend_unregister(const char* name);
/* Limits of a backend, or with NULL of the library's own for `device` (a CUDA ordinal or
 * MAGI_CPU_DEVICE). */
MAGI_API magi_status magi_attention_get_limits(const char* backend, int32_t device,
                                               magi_attention_limits* limits);

#ifdef __cplusplus
}
#endif

#endif
