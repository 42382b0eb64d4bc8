/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MAGI_MAGI_H
#define MAGI_MAGI_H

/*
 * C ABI of libmagi, C11. Rules:
 * - Every call that can fail returns a magi_status; on failure nothing is written to its results,
 *   and magi_last_error_message() says why on the calling thread. No C++ exception leaves.
 * - Handles are opaque and reference counted inside: a plan may be destroyed while an attention
 *   object made from it lives. Destroying NULL does nothing. Immutable handles (mask, placement,
 *   plan) may be used from several threads at once, communicators and attention objects from one.
 * - Structs start with struct_size = sizeof(the struct), set by the caller or a magi_..._init
 *   function. A struct may be up to 256 bytes longer than the library knows as long as the rest is
 *   zero; in structs that the library fills, only what fits is written. Init functions leave NULL.
 * - Outputs lie apart from each other and from inputs, and so do the elements of each; shapes and
 *   strides reach at most 2^40 elements. What does not is refused before anything is written.
 * - Fields and arguments called is_..., are_..., has_..., serves_... or uneven_... are 0 or 1.
 * - Arrays [n, k] are row-major. Optional pointers are marked; all others must not be NULL, except
 *   for arrays of length 0.
 * - `stream` is the CUDA stream that work is enqueued on; tensors in host memory ignore it.
 *   Calls named _sync block.
 */

#include <stddef.h>
#include <stdint.h>

#include "magi/attention_backend.h"
#include "magi/comm_vtable.h"
#include "magi/device_allocator.h"
#include "magi/magi_attention.h"
#include "magi/magi_base.h"
#include "magi/magi_batch.h"
#include "magi/magi_mask.h"
#include "magi/magi_sparse.h"
#include "magi/magi_tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Placements ------------------------------------------------------------------------------ */

/* Names of the algorithms: "auto", "thorough", "zigzag", "affinity", "min_heap", "random_select",
 * "sequential_select". */
typedef struct magi_placement_config {
  size_t struct_size;
  const char* algorithm; /* NULL: "auto" */
  int32_t chunk_size;    /* rows, at most; 0: min_chunks_per_rank a rank, or more */
  int32_t min_chunks_per_rank;
  int32_t uneven_shard;
  double token_tolerance;
  uint64_t seed;
} magi_placement_config;
/* Sets struct_size and the defaults. */
MAGI_API void magi_placement_config_init(magi_placement_config* config);

typedef struct magi_placement magi_placement;
MAGI_API void magi_placement_destroy(magi_placement* placement);
/* chunk_rank [num_chunks]: the rank of every chunk of chunk_size rows. */
MAGI_API magi_status magi_placement_from_chunks(int32_t num_rows, int32_t chunk_size,
                                                int32_t num_ranks, const int32_t* chunk_rank,
                                                int64_t num_chunks, magi_placement** placement);

typedef struct magi_placement_info {
  size_t struct_size;
  int32_t num_rows; /* with padding */
  int32_t chunk_size;
  int32_t num_ranks;
  int32_t num_chunks;
  const int32_t* chunk_rank; /* [num_chunks], lives as long as the handle */
} magi_placement_info;
MAGI_API magi_status magi_placement_get_info(const magi_placement* placement,
                                             magi_placement_info* info);
MAGI_API magi_status magi_placement_rows_of(const magi_placement* placement, int32_t rank,
                                            int32_t* num_rows);
/* int64 [local rows]: global row of every local row, padding clamped to the last valid row. */
MAGI_API magi_status magi_placement_position_ids(const magi_placement* placement, int32_t rank,
                                                 int32_t num_valid_rows, magi_buffer** ids);
/* MagiAttention's rules for chunk size and padding, in rows. */
MAGI_API magi_status magi_resolve_chunk_size(int32_t rows, int32_t num_ranks,
                                             const magi_placement_config* config,
                                             int32_t* chunk_size);
MAGI_API magi_status magi_padding_rows(int32_t rows, int32_t num_ranks, int32_t chunk_size,
                                       int32_t* padding);

/* ---- Plans ----------------------------------------------------------------------------------- */

/* How stages are cut, the work that becomes ready together. */
enum { MAGI_STAGES_AUTO = 0, MAGI_STAGES_BY_HEADS = 1, MAGI_STAGES_BY_ROWS = 2 };
#define MAGI_OVERLAP_AUTO (-1)
/* What travels: keys alone; queries too, where that moves fewer bytes; the fastest as predicted;
 * both, to ranks that share out the kv heads. */
enum {
  MAGI_WORK_KEYS = 0,
  MAGI_WORK_QUERIES = 1,
  MAGI_WORK_AUTO = 2,
  MAGI_WORK_HEADS = 3,
  MAGI_WORK_CHOSEN = 4 /* keys, or another where more than a fifth of a step could be gained */
};

typedef struct magi_plan_config {
  size_t struct_size;
  int32_t num_ranks;
  int32_t num_heads_q;
  int32_t num_heads_kv;
  int32_t head_dim_qk;
  int32_t head_dim_v;
  int32_t element_bytes;  /* of k and v on the wire */
  int32_t overlap_degree; /* 0, 1, ..., or MAGI_OVERLAP_AUTO: the cost model chooses 0 to 8 */
  int32_t stage_mode;     /* MAGI_STAGES_... */
  int32_t min_stage_rows;
  int32_t work;            /* MAGI_WORK_... */
  double flops_per_second; /* cost model: attention forward, per rank */
  double backward_flops_per_second;
  double bytes_per_second;        /* out of one rank */
  double memory_bytes_per_second; /* read and written where rows are merged or copied */
  double seconds_per_transfer;
  double seconds_per_launch;
  const magi_placement_config* placement;   /* optional */
  const magi_placement_config* placement_k; /* optional: cross-attention */
  int32_t devices_per_node;        /* ranks fill one node after the other; 0: one node holds all */
  double network_bytes_per_second; /* cost model between nodes: out of one rank */
  double network_seconds_per_transfer;
  int32_t head_shares; /* with MAGI_WORK_HEADS: a common divisor of ranks and kv heads; 0: chosen */
  int32_t max_runs;    /* of magi_plan_report.rank_runs of a rank; 0: no bound */
  double seconds_per_run; /* cost model: of recurrent layers, for each of these runs and pass */
  /* The most that rank_memory of the report may be; a mask that no plan keeps it for is refused.
   * 0: 4 GiB, which refuses none; -1: no bound. */
  int64_t max_exchange_bytes;
} magi_plan_config;
/* Sets struct_size and the defaults: one rank, one head of 128, 2-byte elements, and a degree that
 * the cost model chooses. */
MAGI_API void magi_plan_config_init(magi_plan_config* config);
/* Sets the constants of the cost model to those of a cost file's text. */
MAGI_API magi_status magi_plan_config_read_cost(magi_plan_config* config, const char* text,
                                                size_t size_bytes);

typedef struct magi_plan magi_plan;
MAGI_API void magi_plan_destroy(magi_plan* plan);
MAGI_API magi_status magi_plan_create(const magi_mask* mask, const magi_plan_config* config,
                                      magi_plan** plan);
/* Another mask over rows that are placed already (placement_k = placement_q in self-attention). */
MAGI_API magi_status magi_plan_create_on(const magi_mask* mask, const magi_plan_config* config,
                                         const magi_placement* placement_q,
                                         const magi_placement* placement_k, magi_plan** plan);
MAGI_API magi_status magi_plan_from_json(const char* text, size_t size_bytes, magi_plan** plan);
MAGI_API magi_status magi_plan_to_json(const magi_plan* plan, magi_buffer** text);
/* A page for a person. */
MAGI_API magi_status magi_plan_describe(const magi_plan* plan, magi_buffer** text);
/* int64 [steps, 2]: when each step of a rank's forward (is_backward 0) or backward begins and ends
 * in ns from the start of the pass, as the cost model predicts. */
MAGI_API magi_status magi_plan_predict_steps(const magi_plan* plan, int32_t rank,
                                             int32_t is_backward, magi_buffer** times);
/* int32 [runs, 4]: rank, first row, row behind the last one, and the row that the first one comes
 * after (-1: it begins a document), ordered by rank and row; none for cross-attention. A row comes
 * after the last one before it that it sees; a recurrent layer computes the rows of a run at once.
 */
MAGI_API magi_status magi_plan_runs(const magi_plan* plan, magi_buffer** runs);
/* Text, one line per defect; empty for a sound plan. */
MAGI_API magi_status magi_plan_check(const magi_plan* plan, magi_buffer** text);
/* SVG text; title may be NULL. */
enum {
  MAGI_PICTURE_MASK = 0,
  MAGI_PICTURE_PLACEMENT = 1,
  MAGI_PICTURE_TRAFFIC = 2,
  MAGI_PICTURE_TIMELINE = 3,
  MAGI_PICTURE_STEPS = 4
};
MAGI_API magi_status magi_plan_draw(const magi_plan* plan, int32_t picture, const char* title,
                                    magi_buffer** svg);
MAGI_API magi_status magi_plan_equal(const magi_plan* plan, const magi_plan* other,
                                     int32_t* is_equal);
MAGI_API magi_status magi_plan_placement_q(const magi_plan* plan, magi_placement** placement);
MAGI_API magi_status magi_plan_placement_k(const magi_plan* plan, magi_placement** placement);
MAGI_API magi_status magi_plan_mask(const magi_plan* plan, magi_mask** mask);

/* Figures of a plan; pointers live as long as the handle. */
typedef struct magi_plan_report {
  size_t struct_size;
  int32_t num_ranks;
  int32_t num_stages; /* with that of the own keys */
  uint64_t digest;
  const int64_t* rank_area;   /* [num_ranks] visible pairs */
  const int64_t* rank_rows;   /* [num_ranks] */
  const int64_t* remote_rows; /* [num_ranks] key rows received */
  const int64_t* pair_bytes;  /* [num_ranks, num_ranks] of a forward pass, row = source */
  double balance;             /* max area / mean area */
  int64_t total_bytes;
  int64_t lower_bound_bytes;
  int64_t ring_bytes; /* what a ring or an all-gather of k and v moves */
  double forward_seconds;
  double backward_seconds;
  double exposed_comm_seconds;
  int32_t num_heads_q; /* of the configuration */
  int32_t num_heads_kv;
  int32_t head_dim_qk;
  int32_t head_dim_v;
  const int64_t* rank_memory; /* [num_ranks] bytes of a backward's rows of others and their sums */
  /* Above 1 (work heads, and where auto finds it fastest): the heads of a row are cut into so many
   * shares, each a row of its own. All row figures here and all tables below count these rows, and
   * heads within a share. */
  int32_t num_head_shares;
  const int64_t* rank_runs; /* [num_ranks] runs that come after a row of another rank */
} magi_plan_report;
MAGI_API magi_status magi_plan_get_report(const magi_plan* plan, magi_plan_report* report);

/* ---- Communicators --------------------------------------------------------------------------- */

typedef struct magi_comm_options {
  size_t struct_size;
  int64_t deadline_ms; /* of every wait; 1 to 2^40 */
  size_t window_bytes; /* staging per rank at start; grows with the transfers */
} magi_comm_options;
MAGI_API void magi_comm_options_init(magi_comm_options* options);

typedef struct magi_communicator magi_communicator;
MAGI_API void magi_communicator_destroy(magi_communicator* communicator);
/* Ranks as threads of this process: communicators [num_ranks], element r for rank r. */
MAGI_API magi_status magi_thread_group_create(int32_t num_ranks, const magi_comm_options* options,
                                              magi_communicator** communicators);

/* Gives every rank's bytes to every rank: bytes of all ranks have the same size, gathered
 * [num_ranks, size_bytes] in rank order. Returns 0, or anything else for failure. */
typedef int32_t (*magi_allgather_fn)(void* context, const void* bytes, size_t size_bytes,
                                     void* gathered);
typedef struct magi_bootstrap {
  size_t struct_size;
  int32_t rank;
  int32_t num_ranks;
  magi_allgather_fn allgather;
  void* context;
} magi_bootstrap;
/* Ranks as processes of one machine over shared memory. Collective. */
MAGI_API magi_status magi_shm_group_create(const magi_bootstrap* bootstrap,
                                           const magi_comm_options* options,
                                           magi_communicator** communicator);
/* The same among processes of one user that agree on `name`. Collective. */
MAGI_API magi_status magi_shm_group_create_named(const char* name, int32_t rank, int32_t num_ranks,
                                                 const magi_comm_options* options,
                                                 magi_communicator** communicator);

/* The ranks of `base`, each with a GPU (a CUDA ordinal) of one host, which write rows straight into
 * each other's memory; `base` may be destroyed. Collective: where a rank cannot take part all ranks
 * get MAGI_ERROR_COMM, which names it. */
MAGI_API magi_status magi_nvlink_group_create(const magi_communicator* base, int32_t device,
                                              const magi_comm_options* options,
                                              magi_communicator** communicator);

/* Ranks with a GPU each, on any machines, over NCCL, which is opened when a group is made. */
typedef struct magi_nccl_options {
  size_t struct_size;
  int64_t deadline_ms; /* of every wait, on the host and on the GPU; 1 to 2^40 */
  int32_t max_ctas;    /* multiprocessors that carry an exchange, at most; 0: as NCCL chooses */
  const char* library; /* its path; null: the one that is loaded already, else libnccl.so.2 */
} magi_nccl_options;
MAGI_API void magi_nccl_options_init(magi_nccl_options* options);
/* The bootstrap's function and context must live as long as the communicator. Collective. */
MAGI_API magi_status magi_nccl_group_create(const magi_bootstrap* bootstrap, int32_t device,
                                            const magi_nccl_options* options,
                                            magi_communicator** communicator);

/* A transport of the caller's; the communicator takes over the table's context. */
MAGI_API magi_status magi_communicator_from_vtable(const magi_comm_vtable* vtable,
                                                   magi_communicator** communicator);

MAGI_API magi_status magi_communicator_rank(const magi_communicator* communicator, int32_t* rank,
                                            int32_t* num_ranks);
/* "threads", "shm", ... */
MAGI_API const char* magi_communicator_backend(const magi_communicator* communicator);

typedef struct magi_comm_counters {
  size_t struct_size;
  int64_t messages;
  int64_t casts;
  int64_t reduces;
  magi_buffer* bytes_to_peer; /* int64 [num_ranks], payload only; the caller destroys it */
} magi_comm_counters;
MAGI_API magi_status magi_communicator_counters(const magi_communicator* communicator,
                                                magi_comm_counters* counters);
/* The group's failure where this rank knows of one; local. */
MAGI_API magi_status magi_communicator_check(const magi_communicator* communicator);
/* Wakes every rank that waits in this group with MAGI_COMM_ABORTED; the group is unusable after. */
MAGI_API magi_status magi_communicator_abort(magi_communicator* communicator, const char* reason);
/* Collective, orderly end. */
MAGI_API magi_status magi_communicator_close_sync(magi_communicator* communicator);

/* Rows [row, row + num_rows) of the local tensor, exchanged with `peer`. Records of one pair of
 * ranks come in the same order on both sides. */
typedef struct magi_peer_rows {
  int32_t peer;
  int32_t row;
  int32_t num_rows;
} magi_peer_rows;

/* An exchange of rows. A cast moves owned rows of inputs to needed rows of outputs; sum and lse
 * merge move needed rows of inputs (partials) to owned rows of outputs, which they are combined
 * with, partials in rank order. */
typedef struct magi_exchange_args {
  size_t struct_size;
  const magi_tensor* inputs;  /* [num_tensors] */
  const magi_tensor* outputs; /* [num_tensors]; lse merge: pairs {out, lse} */
  int32_t num_tensors;        /* 1 to 16 */
  int32_t kind;               /* MAGI_EXCHANGE_CAST, _SUM or _LSE_MERGE */
  const magi_peer_rows* owned;
  int64_t num_owned;
  const magi_peer_rows* needed;
  int64_t num_needed;
  uint64_t plan_digest; /* equal on all ranks of an exchange, else a mismatch is reported */
  int32_t stage;        /* likewise */
  void* stream;         /* of tensors on a GPU: a cudaStream_t that the exchange is enqueued on */
} magi_exchange_args;

typedef struct magi_exchange magi_exchange;
/* Starts an exchange of rows; the tensors' data must live until the wait is over, everything else
 * only during the call. Collective. */
MAGI_API magi_status magi_exchange_start(magi_communicator* communicator,
                                         const magi_exchange_args* args, magi_exchange** exchange);
/* Blocks until this rank's part is complete; on a GPU enqueues the rest of it on the stream. */
MAGI_API magi_status magi_exchange_wait_sync(magi_exchange* exchange);
MAGI_API void magi_exchange_destroy(magi_exchange* exchange);

/* ---- Shards ---------------------------------------------------------------------------------- */

/* Global [rows, ...] -> local rows of `rank`; padding rows = pad_value. No communication. */
MAGI_API magi_status magi_dispatch(const magi_tensor* global, const magi_placement* placement,
                                   int32_t rank, double pad_value, const magi_tensor* local,
                                   void* stream);
/* Local -> global on every rank. Collective. */
MAGI_API magi_status magi_undispatch(const magi_tensor* local, const magi_placement* placement,
                                     magi_communicator* communicator, const magi_tensor* global,
                                     void* stream);
enum { MAGI_GRADIENT_REPLICATED = 0, MAGI_GRADIENT_PARTIAL = 1 };
typedef struct magi_undispatch_gradient {
  size_t struct_size;
  const magi_tensor* global_gradient;
  const magi_tensor* local_gradient; /* written */
  int32_t mode; /* replicated: keep the own rows; partial: sum over ranks, collective */
} magi_undispatch_gradient;
MAGI_API magi_status magi_undispatch_backward(const magi_undispatch_gradient* gradient,
                                              const magi_placement* placement,
                                              magi_communicator* communicator, void* stream);
typedef struct magi_roll_args {
  size_t struct_size;
  const magi_tensor* local;
  const magi_tensor* out; /* written; does not overlap local */
  int32_t num_valid_rows;
  int64_t shift;
} magi_roll_args;
/* Row (i + shift) mod num_valid_rows of the sequence = row i. Collective. */
MAGI_API magi_status magi_roll(const magi_roll_args* args, const magi_placement* placement,
                               magi_communicator* communicator, void* stream);

/* ---- Attention: structs in magi/magi_attention.h, backends in magi/attention_backend.h --------
 */

/* Runs a plan on one rank. Collective, in the same order on all ranks of the group, with the same
 * optional tensors: a rank without rows gives them with no rows. On a GPU, with tensors as for
 * magi_flex_attention_forward, a call only enqueues: what `stream` is given later finds it done. */
typedef struct magi_attention magi_attention;
MAGI_API magi_status magi_attention_create(const magi_plan* plan, magi_communicator* communicator,
                                           magi_attention** attention);
typedef struct magi_attention_options {
  size_t struct_size;
  const magi_device_allocator* allocator; /* copied; NULL: a pool of the library's */
  int32_t exchange_sms; /* multiprocessors that attention leaves to exchanges under way */
  const char* backend;  /* copied; NULL: the library's own for the tensors' device */
  /* 1: partial gradients of keys travel in the type of k, each rounded once, instead of float32;
   * the same on all ranks */
  int32_t are_partials_rounded;
} magi_attention_options;
MAGI_API void magi_attention_options_init(magi_attention_options* options);
MAGI_API magi_status magi_attention_create_with(const magi_plan*, magi_communicator*,
                                                const magi_attention_options*, magi_attention**);
MAGI_API void magi_attention_destroy(magi_attention* attention);
MAGI_API magi_status magi_attention_workspace_bytes(const magi_attention* attention,
                                                    size_t* size_bytes);
MAGI_API magi_status magi_attention_forward(magi_attention* attention,
                                            const magi_attention_inputs* inputs,
                                            const magi_attention_result* result, void* stream);
MAGI_API magi_status magi_attention_backward(magi_attention* attention,
                                             const magi_attention_inputs* inputs,
                                             const magi_attention_result* result,
                                             const magi_attention_gradients* gradients,
                                             void* stream);

/* From here on calls note what the host does when; earlier notes are dropped. */
MAGI_API magi_status magi_attention_start_trace(magi_attention* attention);
enum { MAGI_SPAN_PASS = 0, MAGI_SPAN_STEP = 1, MAGI_SPAN_AWAIT = 2 };
/* int64 [spans, 6] in the order in which spans ended: MAGI_SPAN_..., 0 forward or 1 backward,
 * number of the pass since the trace was started, position of the step in its list (-1: all of the
 * pass), begin and end in ns of the monotonic clock. Ends the trace. */
MAGI_API magi_status magi_attention_stop_trace(magi_attention* attention, magi_buffer** spans);

/* One device, no plan: the mask's rows are those of q and k. Tensors in host memory, or all on one
 * GPU of compute capability 8.0 or later: bfloat16 or float16 q, k, v, head dims multiples of 8 up
 * to 256, last dims contiguous, other strides multiples of 16 bytes; keys and values finite inside
 * the key range of every slice and in the 255 rows before it.
 *
 * On a GPU the call only enqueues. The mask handle keeps the schedules of the last 256
 * combinations of shapes, types, device, sm_margin, is_fast_backward and backend; the first call
 * with a combination makes its schedule (which takes time and blocks), later ones wait for nothing.
 * One handle may serve any threads and streams at once, and calls may be captured in a graph, which
 * then keeps the schedule; executables of one captured graph must not run at the same time. Giving
 * one up, at one combination more or when the mask is destroyed, waits for the device. All rows of
 * the backward's tensors are finite where they are near rows that are seen: in the same 128 of q,
 * counted from its first, within 127 of k. */
MAGI_API magi_status magi_flex_attention_forward(const magi_mask* mask,
                                                 const magi_attention_inputs* inputs,
                                                 const magi_attention_result* result, void* stream);
MAGI_API magi_status magi_flex_attention_backward(const magi_mask* mask,
                                                  const magi_attention_inputs* inputs,
                                                  const magi_attention_result* result,
                                                  const magi_attention_gradients* gradients,
                                                  void* stream);
/* Bytes of workspace of such a call of the backward, 0 in host memory; makes its schedule. Shapes,
 * types and devices alone are read: data may be NULL. */
MAGI_API magi_status magi_flex_attention_backward_workspace_bytes(
    const magi_mask* mask, const magi_attention_inputs* inputs, const magi_attention_result* result,
    const magi_attention_gradients* gradients, size_t* size_bytes);

#ifdef __cplusplus
}
#endif

#endif
