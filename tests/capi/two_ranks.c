/* SPDX-License-Identifier: Apache-2.0 */
/* The C ABI end to end: two ranks as threads attend over packed documents, forward and backward,
 * and agree with one attention call over the whole sequence. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "magi/magi.h"

enum { kRows = 96, kHeads = 4, kHeadsKv = 2, kDim = 8, kRanks = 2 };
enum { kQ = kRows * kHeads * kDim, kK = kRows * kHeadsKv * kDim, kLse = kRows * kHeads };

static void check(magi_status status, const char* what) {
  if (status == MAGI_OK) return;
  fprintf(stderr, "%s: status %d: %s\n", what, status, magi_last_error_message());
  exit(1);
}
#define CHECK(call) check((call), #call)

static void expect(int condition, const char* what) {
  if (condition) return;
  fprintf(stderr, "expected: %s\n", what);
  exit(1);
}
#define EXPECT(condition) expect((condition), #condition)

static magi_tensor tensor(void* data, int64_t rows, int64_t heads, int64_t dim) {
  magi_tensor result = {.struct_size = sizeof(magi_tensor),
                        .data = data,
                        .dtype = MAGI_FLOAT32,
                        .device = MAGI_CPU_DEVICE,
                        .rank = dim > 0 ? 3 : 2,
                        .shape = {rows, heads, dim, 0},
                        .stride = {heads * (dim > 0 ? dim : 1), dim > 0 ? dim : 1, dim > 0, 0}};
  return result;
}

static void draw(float* values, size_t count, unsigned seed) {
  for (size_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    values[i] = (float)(seed >> 8) / (float)(1u << 23) - 1.0f;
  }
}

/* All tensors of one attention problem, of at most kRows rows. */
typedef struct problem {
  int64_t rows;
  float q[kQ], k[kK], v[kK], dout[kQ], out[kQ], lse[kLse], dq[kQ], dk[kK], dv[kK];
  float max_logits[kHeads];
} problem;

/* Forward and backward of a problem: by plan where `attention` is given, else alone by mask. */
static void run(problem* p, magi_attention* attention, const magi_mask* mask) {
  const magi_tensor q = tensor(p->q, p->rows, kHeads, kDim);
  const magi_tensor k = tensor(p->k, p->rows, kHeadsKv, kDim);
  const magi_tensor v = tensor(p->v, p->rows, kHeadsKv, kDim);
  const magi_tensor out = tensor(p->out, p->rows, kHeads, kDim);
  const magi_tensor lse = tensor(p->lse, p->rows, kHeads, 0);
  const magi_tensor dout = tensor(p->dout, p->rows, kHeads, kDim);
  const magi_tensor dq = tensor(p->dq, p->rows, kHeads, kDim);
  const magi_tensor dk = tensor(p->dk, p->rows, kHeadsKv, kDim);
  const magi_tensor dv = tensor(p->dv, p->rows, kHeadsKv, kDim);
  magi_tensor max_logits = tensor(p->max_logits, kHeads, 1, 0);
  max_logits.rank = 1;
  const magi_attention_inputs inputs = {
      .struct_size = sizeof(inputs), .q = &q, .k = &k, .v = &v, .softmax_scale = 0.5};
  const magi_attention_result result = {
      .struct_size = sizeof(result), .out = &out, .lse = &lse, .max_logits = &max_logits};
  const magi_attention_gradients gradients = {
      .struct_size = sizeof(gradients), .dout = &dout, .dq = &dq, .dk = &dk, .dv = &dv};
  if (attention != NULL) {
    CHECK(magi_attention_forward(attention, &inputs, &result, NULL));
    CHECK(magi_attention_backward(attention, &inputs, &result, &gradients, NULL));
  } else {
    CHECK(magi_flex_attention_forward(mask, &inputs, &result, NULL));
    CHECK(magi_flex_attention_backward(mask, &inputs, &result, &gradients, NULL));
  }
}

typedef struct worker {
  const magi_plan* plan;
  magi_communicator* communicator;
  const problem* global; /* inputs of the whole sequence */
  problem local;
  problem seen; /* the final results as this rank sees them */
} worker;

static void shard(const float* global, float* local, int64_t local_rows, int64_t heads,
                  const magi_placement* placement, int32_t rank) {
  const magi_tensor whole = tensor((void*)global, kRows, heads, kDim);
  const magi_tensor part = tensor(local, local_rows, heads, kDim);
  CHECK(magi_dispatch(&whole, placement, rank, 0.0, &part, NULL));
}

static void unshard(float* local, float* global, int64_t local_rows, int64_t heads, int64_t dim,
                    const magi_placement* placement, magi_communicator* communicator) {
  const magi_tensor part = tensor(local, local_rows, heads, dim);
  const magi_tensor whole = tensor(global, kRows, heads, dim);
  CHECK(magi_undispatch(&part, placement, communicator, &whole, NULL));
}

static void check_roll(const magi_placement* placement, magi_communicator* communicator,
                       int32_t rank, int32_t local_rows) {
  magi_buffer* ids = NULL;
  CHECK(magi_placement_position_ids(placement, rank, kRows, &ids));
  EXPECT(magi_buffer_size_bytes(ids) == (size_t)local_rows * sizeof(int64_t));
  const int64_t* positions = magi_buffer_data(ids);
  int64_t rolled[kRows] = {0};
  magi_tensor from = tensor((void*)positions, local_rows, 1, 0);
  magi_tensor to = tensor(rolled, local_rows, 1, 0);
  from.dtype = to.dtype = MAGI_INT64;
  const magi_roll_args args = {
      .struct_size = sizeof(args), .local = &from, .out = &to, .num_valid_rows = kRows, .shift = 3};
  CHECK(magi_roll(&args, placement, communicator, NULL));
  for (int32_t i = 0; i < local_rows; ++i) {
    EXPECT(rolled[i] == (positions[i] + kRows - 3) % kRows);
  }
  magi_buffer_destroy(ids);
}

static void* run_rank(void* argument) {
  worker* w = argument;
  int32_t rank = 0, num_ranks = 0, rows = 0;
  magi_placement* placement = NULL;
  magi_attention* attention = NULL;
  CHECK(magi_communicator_rank(w->communicator, &rank, &num_ranks));
  CHECK(magi_plan_placement_q(w->plan, &placement));
  CHECK(magi_placement_rows_of(placement, rank, &rows));
  problem* local = &w->local;
  local->rows = rows;
  shard(w->global->q, local->q, rows, kHeads, placement, rank);
  shard(w->global->k, local->k, rows, kHeadsKv, placement, rank);
  shard(w->global->v, local->v, rows, kHeadsKv, placement, rank);
  shard(w->global->dout, local->dout, rows, kHeads, placement, rank);
  CHECK(magi_attention_create(w->plan, w->communicator, &attention));
  run(local, attention, NULL);
  size_t workspace = 0;
  CHECK(magi_attention_workspace_bytes(attention, &workspace));
  EXPECT(workspace > 0);
  unshard(local->out, w->seen.out, rows, kHeads, kDim, placement, w->communicator);
  unshard(local->lse, w->seen.lse, rows, kHeads, 0, placement, w->communicator);
  unshard(local->dq, w->seen.dq, rows, kHeads, kDim, placement, w->communicator);
  unshard(local->dk, w->seen.dk, rows, kHeadsKv, kDim, placement, w->communicator);
  unshard(local->dv, w->seen.dv, rows, kHeadsKv, kDim, placement, w->communicator);
  memcpy(w->seen.max_logits, local->max_logits, sizeof(local->max_logits));
  check_roll(placement, w->communicator, rank, rows);
  CHECK(magi_communicator_close_sync(w->communicator));
  magi_attention_destroy(attention);
  magi_placement_destroy(placement);
  return NULL;
}

static void expect_close(const float* got, const float* wanted, size_t count, const char* name) {
  for (size_t i = 0; i < count; ++i) {
    if (fabsf(got[i] - wanted[i]) <= 2e-5f) continue;
    fprintf(stderr, "%s[%zu] is %g, expected %g\n", name, i, got[i], wanted[i]);
    exit(1);
  }
}

static magi_plan* make_plan(const magi_mask* mask) {
  magi_plan_config config;
  magi_plan_config_init(&config);
  config.num_ranks = kRanks;
  config.num_heads_q = kHeads;
  config.num_heads_kv = kHeadsKv;
  config.head_dim_qk = kDim;
  config.head_dim_v = kDim;
  config.element_bytes = sizeof(float);
  config.overlap_degree = 2;
  magi_plan* plan = NULL;
  CHECK(magi_plan_create(mask, &config, &plan));
  config.num_ranks = 0;
  magi_plan* none = NULL;
  EXPECT(magi_plan_create(mask, &config, &none) == MAGI_INVALID_ARGUMENT && none == NULL);
  EXPECT(strstr(magi_last_error_message(), "num_ranks") != NULL);
  return plan;
}

int main(void) {
  EXPECT(magi_abi_version() == MAGI_ABI_VERSION);
  const int32_t documents[] = {0, 13, 14, 60, kRows};
  const magi_document_rule rule = {
      .struct_size = sizeof(rule), .is_causal = 1, .window_left = -1, .window_right = -1};
  magi_mask* mask = NULL;
  CHECK(magi_mask_from_cu_seqlens(documents, 5, documents, 5, &rule, &mask));
  magi_plan* plan = make_plan(mask);
  magi_comm_options options;
  magi_comm_options_init(&options);
  magi_communicator* group[kRanks];
  CHECK(magi_thread_group_create(kRanks, &options, group));

  static problem whole = {.rows = kRows};
  draw(whole.q, kQ, 6);
  draw(whole.k, kK, 7);
  draw(whole.v, kK, 8);
  draw(whole.dout, kQ, 9);
  static worker workers[kRanks];
  pthread_t threads[kRanks];
  for (int rank = 0; rank < kRanks; ++rank) {
    workers[rank].plan = plan;
    workers[rank].communicator = group[rank];
    workers[rank].global = &whole;
    EXPECT(pthread_create(&threads[rank], NULL, run_rank, &workers[rank]) == 0);
  }
  for (int rank = 0; rank < kRanks; ++rank) pthread_join(threads[rank], NULL);
  run(&whole, NULL, mask);
  for (int rank = 0; rank < kRanks; ++rank) {
    problem* seen = &workers[rank].seen;
    expect_close(seen->out, whole.out, kQ, "out");
    expect_close(seen->lse, whole.lse, kLse, "lse");
    expect_close(seen->dq, whole.dq, kQ, "dq");
    expect_close(seen->dk, whole.dk, kK, "dk");
    expect_close(seen->dv, whole.dv, kK, "dv");
    expect_close(seen->max_logits, whole.max_logits, kHeads, "max_logits");
    magi_communicator_destroy(group[rank]);
  }
  magi_plan_destroy(plan);
  magi_mask_destroy(mask);
  return 0;
}
