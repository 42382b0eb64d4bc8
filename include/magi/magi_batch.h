/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MAGI_MAGI_BATCH_H
#define MAGI_MAGI_BATCH_H

/* Plans of batches of the C ABI (magi/batch.hpp says more); include magi/magi.h, which states the
 * rules and has masks and placements. */

#include <stddef.h>
#include <stdint.h>

#include "magi/magi_base.h"
#include "magi/magi_mask.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct magi_placement magi_placement;

typedef struct magi_batch_config {
  size_t struct_size;
  int32_t num_ranks;
  int32_t rows_per_rank;     /* that a rank has memory for in a micro-batch */
  int32_t devices_per_node;  /* 0: one node holds all */
  int32_t num_micro_batches; /* 0: the number of the shortest step */
  int32_t chunk_size;        /* rows; 0: a 256th of rows_per_rank, 64 at most */
  double flops_per_token;    /* of a step, both passes and all layers, but attention */
  double flops_per_pair;     /* of attention */
  double bytes_per_token;    /* that another rank waits for */
  double flops_per_second;
  double bytes_per_second;
  double network_bytes_per_second;
} magi_batch_config;
/* Sets struct_size and the defaults: one rank, Qwen3-8B on H200. */
MAGI_API void magi_batch_config_init(magi_batch_config* config);

/* Immutable. */
typedef struct magi_batch magi_batch;
MAGI_API void magi_batch_destroy(magi_batch* batch);
/* rows, pairs [num_samples]: of each sample, and visible pairs of its mask; pairs NULL: causal. */
MAGI_API magi_status magi_batch_create(const magi_batch_config* config, const int32_t* rows,
                                       const int64_t* pairs, int64_t num_samples,
                                       magi_batch** batch);
MAGI_API magi_status magi_batch_from_json(const char* text, size_t size_bytes, magi_batch** batch);
MAGI_API magi_status magi_batch_to_json(const magi_batch* batch, magi_buffer** text);
/* Text, one line per defect; empty for a sound plan. */
MAGI_API magi_status magi_batch_check(const magi_batch* batch, magi_buffer** text);
/* SVG text; title may be NULL. */
MAGI_API magi_status magi_batch_draw(const magi_batch* batch, const char* title, magi_buffer** svg);
/* int32 [parts, 4]: micro-batch, sample, rank, rows. */
MAGI_API magi_status magi_batch_parts(const magi_batch* batch, magi_buffer** parts);
/* int32 [samples, 2]: sample, and its first row in the packed sequence of a micro-batch. */
MAGI_API magi_status magi_batch_packed(const magi_batch* batch, int32_t micro_batch,
                                       magi_buffer** samples);
/* Of a packed sequence. masks [num_masks]: of all samples of the batch; none where
 * all are causal. */
MAGI_API magi_status magi_batch_mask(const magi_batch* batch, int32_t micro_batch,
                                     const magi_mask* const* masks, int64_t num_masks,
                                     magi_mask** mask);
MAGI_API magi_status magi_batch_placement(const magi_batch* batch, int32_t micro_batch,
                                          const magi_mask* mask, magi_placement** placement);

/* Figures; pointers live as long as the handle. */
typedef struct magi_batch_report {
  size_t struct_size;
  int32_t num_micro_batches;
  int32_t num_ranks;
  int32_t chunk_size;
  const int64_t* rank_rows;   /* [num_micro_batches, num_ranks], padding included */
  const double* rank_seconds; /* [num_micro_batches, num_ranks] */
  double step_seconds;        /* the longest micro-batch, times their number */
  double lower_bound_seconds;
  int64_t node_bytes;    /* that ranks wait for, over links inside nodes */
  int64_t network_bytes; /* and between nodes */
} magi_batch_report;
MAGI_API magi_status magi_batch_get_report(const magi_batch* batch, magi_batch_report* report);

#ifdef __cplusplus
}
#endif

#endif /* MAGI_MAGI_BATCH_H */
