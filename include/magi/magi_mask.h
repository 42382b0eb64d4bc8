/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MAGI_MASK_H
#define MAGI_MASK_H

/* Masks of the C ABI; include magi/magi.h, which states the rules. */

#include "magi/magi_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* No bound on a diagonal; row counts are below it. */
#define MAGI_BAND_INFINITY (1 << 30)
enum {
  MAGI_MASK_FULL = 0,
  MAGI_MASK_CAUSAL = 1,
  MAGI_MASK_INVERSE_CAUSAL = 2,
  MAGI_MASK_BIDIRECTIONAL_CAUSAL = 3
};

typedef struct magi_mask magi_mask;
MAGI_API void magi_mask_destroy(magi_mask* mask);

/* slices [n, 6]: q0, q1, k0, k1, d_min, d_max, with d_min <= d_max. */
MAGI_API magi_status magi_mask_from_slices(const int32_t* slices, int64_t num_slices,
                                           int32_t rows_q, int32_t rows_k, magi_mask** mask);

/* One slice for each (q range, k range, type). */
typedef struct magi_range_lists {
  size_t struct_size;
  const int32_t* q_ranges; /* [num_q_ranges, 2] */
  int64_t num_q_ranges;
  const int32_t* k_ranges; /* [num_k_ranges, 2] */
  int64_t num_k_ranges;
  const int32_t* types; /* [num_types]: MAGI_MASK_..., one per range pair or one for all */
  int64_t num_types;
  int32_t rows_q;
  int32_t rows_k;
} magi_range_lists;
MAGI_API magi_status magi_mask_from_ranges(const magi_range_lists* lists, magi_mask** mask);

/* How queries of packed documents see keys; -1: no bound on that side of the window. */
typedef struct magi_document_rule {
  size_t struct_size;
  int32_t is_causal; /* excludes a window */
  int32_t window_left;
  int32_t window_right;
  int32_t num_global; /* leading keys of every document that the window's left bound keeps */
  /* 1: of more queries than keys those above the diagonal see the keys that the window reaches, as
   * in FlashAttention. 0: they see none, as in MagiAttention. */
  int32_t has_rows_above;
} magi_document_rule;
/* Prefix sums of document lengths, [num_entries] each. */
MAGI_API magi_status magi_mask_from_cu_seqlens(const int32_t* cu_seqlens_q, int64_t num_entries_q,
                                               const int32_t* cu_seqlens_k, int64_t num_entries_k,
                                               const magi_document_rule* rule, magi_mask** mask);

typedef struct magi_window_mask {
  size_t struct_size;
  int32_t q_begin, q_end;
  int32_t k_begin, k_end;
  int32_t left, right; /* -1: no bound */
  int32_t rows_q, rows_k;
} magi_window_mask;
MAGI_API magi_status magi_mask_from_window(const magi_window_mask* window, magi_mask** mask);
/* matrix [rows_q, rows_k], non-zero: visible. */
MAGI_API magi_status magi_mask_from_matrix(const uint8_t* matrix, int32_t rows_q, int32_t rows_k,
                                           magi_mask** mask);
/* The keys of each row as intervals [num_intervals, 2] (begin, end), in any order, of which the
 * union counts; offsets [rows_q + 1]: those of row i are offsets[i] to offsets[i + 1] - 1. Each
 * pair is in one slice of the mask. */
MAGI_API magi_status magi_mask_from_runs(const int64_t* offsets, int32_t rows_q,
                                         const int32_t* intervals, int64_t num_intervals,
                                         int32_t rows_k, magi_mask** mask);
/* A field of the form of another program (docs/masks.md): the number of an integer, 0 or 1 of a
 * flag, the numbers of a list or of all rows of a table, whose row i begins at row_offsets[i] and
 * ends before row_offsets[i + 1]. */
typedef struct magi_form_field {
  const char* name;
  const int32_t* numbers;
  int64_t num_numbers;
  const int64_t* row_offsets; /* NULL for other fields than tables */
  int64_t num_row_offsets;    /* rows of a table + 1 */
} magi_form_field;
/* As magi_mask_from_json of a text with "form" and these keys. */
MAGI_API magi_status magi_mask_from_form(const char* form, const magi_form_field* fields,
                                         int64_t num_fields, magi_mask** mask);
MAGI_API magi_status magi_mask_from_json(const char* text, size_t size_bytes, magi_mask** mask);
MAGI_API magi_status magi_mask_to_json(const magi_mask* mask, magi_buffer** text);

MAGI_API magi_status magi_mask_rows(const magi_mask* mask, int32_t* rows_q, int32_t* rows_k);
/* int32 [n, 6] as in magi_mask_from_slices. */
MAGI_API magi_status magi_mask_slices(const magi_mask* mask, magi_buffer** slices);
/* int32 [n, 5]: q begin, q end, k begin, k end, MAGI_MASK_...: the same pairs as typed slices. */
MAGI_API magi_status magi_mask_typed_slices(const magi_mask* mask, magi_buffer** slices);
/* The inverse of magi_mask_from_runs: int64 [rows_q + 1] and int32 [n, 2], ascending, a hidden key
 * between two runs of a row. MAGI_INVALID_ARGUMENT where a row sees a key in two slices. */
MAGI_API magi_status magi_mask_runs(const magi_mask* mask, magi_buffer** offsets,
                                    magi_buffer** runs);
/* Queries and keys in each other's place. */
MAGI_API magi_status magi_mask_transpose(const magi_mask* mask, magi_mask** transposed);
/* SVG text; title may be NULL. */
MAGI_API magi_status magi_mask_draw(const magi_mask* mask, const char* title, magi_buffer** svg);
/* The same of a part: rows and keys are int32 [2], begin and end; NULL: all rows, and of some rows
 * the keys that they see. */
MAGI_API magi_status magi_mask_draw_part(const magi_mask* mask, const char* title,
                                         const int32_t* rows, const int32_t* keys,
                                         magi_buffer** svg);
/* Visible pairs; a pair in n slices counts n times. */
MAGI_API magi_status magi_mask_area(const magi_mask* mask, int64_t* area);
/* How many rows the farthest keys lie before and after a query that sees them; 0: none. */
MAGI_API magi_status magi_mask_reach(const magi_mask* mask, int32_t* before, int32_t* after);

#ifdef __cplusplus
}
#endif

#endif
