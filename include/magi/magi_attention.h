/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MAGI_ATTENTION_H
#define MAGI_ATTENTION_H

/* Structs of attention calls; include magi/magi.h, which states the rules. */

#include <stddef.h>
#include <stdint.h>

#include "magi/magi_tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MAGI_SINK_HEAD = 0, MAGI_ROW_SINK_HEAD = 1 };

/* q [rows_q, heads_q, dim_qk], k [rows_k, heads_kv, dim_qk], v [rows_k, heads_kv, dim_v]. */
typedef struct magi_attention_inputs {
  size_t struct_size;
  const magi_tensor* q;
  const magi_tensor* k;
  const magi_tensor* v;
  const magi_tensor* sink; /* optional: [sinks, heads_q] or [rows_q, sinks, heads_q], by layout */
  double softmax_scale;    /* 0: 1 / sqrt(dim_qk); as AttentionParams in magi/attention.hpp says */
  double softcap;          /* 0: off; likewise */
  int32_t sink_layout;     /* MAGI_SINK_HEAD or MAGI_ROW_SINK_HEAD */
  /* magi_flex_... on a GPU: multiprocessors left to others; 0 in calls by a plan, whose
   * magi_attention_options have exchange_sms */
  int32_t sm_margin;
  /* backward on a GPU: 1: dq may differ in its last bits from call to call, which is faster; 0: all
   * results have the same bits in every call */
  int32_t is_fast_backward;
  /* magi_flex_...: NULL: the library's own for the tensors' device; NULL in calls by a plan, whose
   * magi_attention_options name theirs */
  const char* backend;
} magi_attention_inputs;

/* Written by forward, read by backward. */
typedef struct magi_attention_result {
  size_t struct_size;
  const magi_tensor* out;        /* [rows_q, heads_q, dim_v], type of q or float32 (float64) */
  const magi_tensor* lse;        /* [rows_q, heads_q] float32 (float64) */
  const magi_tensor* max_logits; /* optional: [heads_q] like lse; not read by backward */
} magi_attention_result;

/* Device memory of the caller, aligned to 256 bytes. What it holds need not survive between calls,
 * but calls that overlap in time must not share one. */
typedef struct magi_workspace {
  size_t struct_size;
  void* data;
  size_t size_bytes;
} magi_workspace;

typedef struct magi_attention_gradients {
  size_t struct_size;
  const magi_tensor* dout; /* like out */
  const magi_tensor* dlse; /* optional: like lse */
  const magi_tensor* dq;   /* dq, dk, dv: written, type of q or float32 (float64) */
  const magi_tensor* dk;
  const magi_tensor* dv;
  const magi_tensor* dsink; /* optional: like sink, of this rank's rows */
  /* Optional, read by magi_flex_attention_backward on a GPU; NULL: a pool of the library's. */
  const magi_workspace* workspace;
} magi_attention_gradients;

/* What a backend takes; anything else is refused by name. Head dims: multiples from min to max. */
typedef struct magi_attention_limits {
  size_t struct_size;
  int32_t min_dim_qk;
  int32_t max_dim_qk;
  int32_t dim_qk_multiple;
  int32_t min_dim_v;
  int32_t max_dim_v;
  int32_t dim_v_multiple;
  int32_t dtypes;            /* of q, k and v: bit 1 << MAGI_FLOAT64, ... */
  int32_t stride_bytes;      /* strides of rows and heads, and addresses, are multiples of it */
  int32_t has_float_outputs; /* 1: out and gradients may be float32 beside 16-bit inputs */
  int32_t has_sink;
  int32_t has_softcap;
  int32_t has_max_logits;
  int32_t has_dlse;      /* 1: takes the gradient through lse */
  int32_t has_any_scale; /* 1: softmax_scale may be negative */
} magi_attention_limits;

#ifdef __cplusplus
}
#endif

#endif
