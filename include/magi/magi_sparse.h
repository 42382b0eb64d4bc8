/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MAGI_SPARSE_H
#define MAGI_SPARSE_H

/* Attention under lists, ranges and blocks that are in the memory of the tensors' device. Rules as
 * in magi.h. */

#include <stddef.h>
#include <stdint.h>

#include "magi/magi_attention.h"
#include "magi/magi_base.h"
#include "magi/magi_tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Keys of every query as lists, in place of a mask: entry e of list [i, h] lets query i see, in all
 * query heads of kv head h, keys [e * block_keys, (e + 1) * block_keys) up to rows_k. Entries come
 * in any order; -1 is none; a block that stands n times counts n times; entries that are no block
 * of the keys count as none, and the report tells of them. */
typedef struct magi_key_lists {
  size_t struct_size;
  const magi_tensor* indices; /* int32 [rows_q, heads_kv, entries] */
  int32_t block_keys;
  /* Optional: int64 [2], written by forward: how many entries are no block, and where the first is
   * in row-major indices (-1: none). */
  const magi_tensor* report;
} magi_key_lists;

/* Attention on one device under lists; backend of the inputs is not read, sm_margin and
 * is_fast_backward on a GPU alone. Tensors in host memory, or all on one GPU of compute capability
 * 9.0, in 16-bit types with head dims up to 128, or 576 with v the first 512 columns of k, without
 * dv, which dk then holds too: then the call is enqueued on the stream (a cudaStream_t), reads no
 * entry on the host and may be captured. There is_fast_backward is faster, and gradients of k and v
 * may differ in their last bits from call to call. */
MAGI_API magi_status magi_listed_attention_forward(const magi_key_lists* lists,
                                                   const magi_attention_inputs* inputs,
                                                   const magi_attention_result* result,
                                                   void* stream);
MAGI_API magi_status magi_listed_attention_backward(const magi_key_lists* lists,
                                                    const magi_attention_inputs* inputs,
                                                    const magi_attention_result* result,
                                                    const magi_attention_gradients* gradients,
                                                    void* stream);

/* A mask as range tensors in device memory, int32 without gaps. */
typedef struct magi_flex_ranges {
  size_t struct_size;
  const magi_tensor* q_ranges; /* [slices, 2]: begin, end */
  const magi_tensor* k_ranges; /* [slices, 2] */
  const magi_tensor* types;    /* optional: [slices], MAGI_MASK_...; NULL: all full */
  /* Pairs of a slice and a q tile that the workspace has room for; 0: by rows and slices. A mask
   * with more takes longer, the result is the same. In the backward, of a slice and a k tile: where
   * there are more, dq, dk and dv become NaN. */
  int64_t record_capacity;
  /* Query heads of a kv head per tile; 0: chosen on the device (backward: as many as divide). */
  int32_t packed_heads;
} magi_flex_ranges;

/* Bytes of workspace of magi_flex_ranges_forward. Of the tensors only shapes, types and devices are
 * read; their data may be NULL. */
MAGI_API magi_status magi_flex_ranges_workspace_bytes(const magi_flex_ranges* ranges,
                                                      const magi_attention_inputs* inputs,
                                                      size_t* size_bytes);
/* As magi_flex_attention_forward on a GPU. The host reads no range and waits for nothing, so the
 * call can be captured and replayed with other values in the same tensors. Range ends outside the
 * tensors are clamped, reversed ranges and unknown types are empty; the report tells. The inputs'
 * backend is NULL, "sm90" or "mma". */
MAGI_API magi_status magi_flex_ranges_forward(const magi_flex_ranges* ranges,
                                              const magi_attention_inputs* inputs,
                                              const magi_attention_result* result,
                                              const magi_workspace* workspace, void* stream);

typedef struct magi_flex_ranges_report {
  size_t struct_size;
  int64_t bad_slice;      /* lowest index of a slice with a bad value; -1: none */
  char bad_field[16];     /* its first bad field: "q_ranges[0]", "q_ranges[1]", "k_ranges[0]",
                             "k_ranges[1]", "types"; "" where there is none */
  int64_t num_records;    /* that the mask needs */
  int32_t is_overflowing; /* the capacity is exceeded: slow (forward), NaN (backward) */
  int32_t packed_heads;   /* as chosen */
} magi_flex_ranges_report;
/* What the last magi_flex_ranges_forward on this workspace found; waits for `stream`. */
MAGI_API magi_status magi_flex_ranges_report_sync(const magi_workspace* workspace,
                                                  magi_flex_ranges_report* report, void* stream);

/* As magi_flex_attention_backward on a GPU, with gradients->workspace of the size below. As the
 * forward under ranges it can be captured, in the same graph. dq has the same bits every time. */
MAGI_API magi_status magi_flex_ranges_backward(const magi_flex_ranges* ranges,
                                               const magi_attention_inputs* inputs,
                                               const magi_attention_result* result,
                                               const magi_attention_gradients* gradients,
                                               void* stream);
/* Bytes of workspace of such a call. Shapes, types and devices alone are read. */
MAGI_API magi_status magi_flex_ranges_backward_workspace_bytes(
    const magi_flex_ranges* ranges, const magi_attention_inputs* inputs,
    const magi_attention_result* result, const magi_attention_gradients* gradients,
    size_t* size_bytes);
/* What the last magi_flex_ranges_backward on this workspace found; waits for `stream`. */
MAGI_API magi_status magi_flex_ranges_backward_report_sync(const magi_workspace* workspace,
                                                           magi_flex_ranges_report* report,
                                                           void* stream);

/* A mask of blocks in device memory: block i of q_block queries sees block j of k_block keys in all
 * query heads of kv head h as often as visible[h, i, j] says, 0 to 254. The last block of a side
 * may be shorter. */
typedef struct magi_block_mask {
  size_t struct_size;
  const uint8_t* visible; /* [heads, q blocks, k blocks] without gaps, on the device of q */
  int32_t heads;          /* the kv heads, or 1: the same for all */
  int32_t q_block;        /* 1 to 256 */
  int32_t k_block;        /* 1 to 256 */
  int32_t is_causal;      /* 1: query i sees no key behind i + rows of k - rows of q */
  /* Visible blocks of each head that there is room for, each as often as it counts; 0: all of a
   * mask whose entries are 0 and 1. */
  int64_t max_blocks;
  int64_t max_runs; /* runs of neighbouring visible blocks that are allowed; 0: any number */
  /* Optional: [2] on the device. A forward writes how many runs or blocks there are beyond the
   * room, or lists with entries above 254 (0: all results hold), and -1. A backward whose results
   * do not hold writes the like of its own lists; another leaves it. */
  int64_t* error_word;
} magi_block_mask;

/* is_taken: 1 where magi_block_attention_forward takes a call of these shapes, types and sizes of
 * blocks, else 0: on GPUs of compute capability 9.0, head dims up to 128, blocks of keys that are
 * multiples of 16, blocks of queries that are multiples of 64 / h for some power of two h up to 16
 * that divides the query heads of a kv head, no softcap. Data may be NULL. */
MAGI_API magi_status magi_block_attention_takes(const magi_block_mask* mask,
                                                const magi_attention_inputs* inputs,
                                                int32_t* is_taken);
/* Bytes of workspace of magi_block_attention_forward. Data may be NULL. */
MAGI_API magi_status magi_block_attention_workspace_bytes(const magi_block_mask* mask,
                                                          const magi_attention_inputs* inputs,
                                                          size_t* size_bytes);
/* As magi_flex_attention_forward on a GPU. The host reads nothing of the mask and waits for
 * nothing, so the call can be captured and replayed with another mask in the same memory. Where the
 * mask has more visible blocks or runs than there is room for, or an entry above 254, all of out
 * and lse is NaN. */
MAGI_API magi_status magi_block_attention_forward(const magi_block_mask* mask,
                                                  const magi_attention_inputs* inputs,
                                                  const magi_attention_result* result,
                                                  const magi_workspace* workspace, void* stream);
/* As magi_flex_attention_backward on a GPU, of the workspace of `gradients`, and as the forward
 * above. With is_fast_backward dq may differ in its last bits from call to call. max_runs is not
 * read; where a head has more visible blocks than there is room for, or an entry above 254, all of
 * dq, dk and dv is NaN. */
MAGI_API magi_status magi_block_attention_backward(const magi_block_mask* mask,
                                                   const magi_attention_inputs* inputs,
                                                   const magi_attention_result* result,
                                                   const magi_attention_gradients* gradients,
                                                   void* stream);
/* Bytes of workspace of it, by inputs->is_fast_backward. Data may be NULL. */
MAGI_API magi_status magi_block_attention_backward_workspace_bytes(
    const magi_block_mask* mask, const magi_attention_inputs* inputs,
    const magi_attention_result* result, const magi_attention_gradients* gradients,
    size_t* size_bytes);

#ifdef __cplusplus
}
#endif

#endif
