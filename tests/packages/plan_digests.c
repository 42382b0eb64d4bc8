/* SPDX-License-Identifier: Apache-2.0 */
/* Prints a line for each of some plans, which is the same on every processor. */
#include <magi/magi.h>
#include <stdio.h>

enum { kDocuments = 40, kRanks = 8 };

static int fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, magi_last_error_message());
  return 1;
}

/* Causal documents of 1 to 1024 rows, by the seed. */
static magi_status packed(uint32_t seed, magi_mask** mask) {
  int32_t ends[kDocuments + 1] = {0};
  for (int i = 0; i < kDocuments; ++i) {
    seed = seed * 1664525u + 1013904223u;
    ends[i + 1] = ends[i] + 1 + (int32_t)(seed >> 22);
  }
  const magi_document_rule rule = {
      .struct_size = sizeof rule, .is_causal = 1, .window_left = -1, .window_right = -1};
  return magi_mask_from_cu_seqlens(ends, kDocuments + 1, ends, kDocuments + 1, &rule, mask);
}

static int print_plan(const magi_mask* mask, const magi_plan_config* config) {
  magi_plan* plan = NULL;
  if (magi_plan_create(mask, config, &plan) != MAGI_OK) return fail("plan");
  magi_plan_report report = {.struct_size = sizeof report};
  if (magi_plan_get_report(plan, &report) != MAGI_OK) return fail("report");
  printf("%s work %d digest %016llx bytes %lld seconds %a %a\n", config->placement->algorithm,
         config->work, (unsigned long long)report.digest, (long long)report.total_bytes,
         report.forward_seconds, report.backward_seconds);
  magi_plan_destroy(plan);
  return 0;
}

static int print_plans(const magi_mask* mask, const char* algorithm) {
  magi_placement_config placement;
  magi_placement_config_init(&placement);
  placement.algorithm = algorithm;
  placement.chunk_size = 128;
  magi_plan_config config;
  magi_plan_config_init(&config);
  config.num_ranks = kRanks;
  config.num_heads_q = 4;
  config.num_heads_kv = 2;
  config.placement = &placement;
  if (print_plan(mask, &config) != 0) return 1;
  config.work = MAGI_WORK_QUERIES;
  return print_plan(mask, &config);
}

int main(void) {
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    magi_mask* mask = NULL;
    if (packed(seed, &mask) != MAGI_OK) return fail("mask");
    if (print_plans(mask, "thorough") != 0 || print_plans(mask, "affinity") != 0) return 1;
    magi_mask_destroy(mask);
  }
  return 0;
}
