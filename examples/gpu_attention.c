/* SPDX-License-Identifier: Apache-2.0 */
/* Causal attention of two packed documents on a GPU (Hopper) by the C interface, forward and
 * backward, in memory and on a stream of the caller's. Means of ones are ones. */
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "magi/magi.h"

enum { kRows = 1000, kHeads = 8, kHeadsKv = 2, kDim = 128 };

static void check(int is_right, const char* what) {
  if (is_right) return;
  fprintf(stderr, "%s: %s\n", what, magi_last_error_message());
  exit(1);
}

/* A tensor in memory of this program's: bfloat16 [rows, heads, dim], float32 [rows, heads]. */
static magi_tensor made(int heads, int dim, float value) {
  const int is_wide = dim == 0;
  const size_t count = (size_t)kRows * heads * (is_wide ? 1 : dim), size = is_wide ? 4 : 2;
  magi_tensor tensor = {.struct_size = sizeof tensor,
                        .dtype = is_wide ? MAGI_FLOAT32 : MAGI_BFLOAT16,
                        .rank = is_wide ? 2 : 3,
                        .shape = {kRows, heads, dim},
                        .stride = {is_wide ? heads : (int64_t)heads * dim, is_wide ? 1 : dim, 1}};
  char* host = malloc(count * size);
  for (size_t i = 0; i < count; ++i) {
    const unsigned short bits = value == 0.0f ? 0 : 0x3f80; /* of 1 */
    if (is_wide) ((float*)host)[i] = value;
    if (!is_wide) ((unsigned short*)host)[i] = bits;
  }
  check(cudaMalloc(&tensor.data, count * size) == cudaSuccess, "cudaMalloc");
  cudaMemcpy(tensor.data, host, count * size, cudaMemcpyHostToDevice);
  free(host);
  return tensor;
}

/* The bfloat16 bits of a tensor's last element. */
static unsigned short last_bits(const magi_tensor* tensor) {
  unsigned short bits = 0;
  const int64_t last = tensor->shape[0] * tensor->stride[0] - 1;
  cudaMemcpy(&bits, (unsigned short*)tensor->data + last, 2, cudaMemcpyDeviceToHost);
  return bits;
}

int main(void) {
  const int32_t documents[] = {0, 400, kRows};
  const magi_document_rule rule = {
      .struct_size = sizeof rule, .is_causal = 1, .window_left = -1, .window_right = -1};
  magi_mask* mask = NULL;
  check(!magi_mask_from_cu_seqlens(documents, 3, documents, 3, &rule, &mask), "mask");
  const magi_tensor q = made(kHeads, kDim, 1), k = made(kHeadsKv, kDim, 1), v = k;
  const magi_tensor out = made(kHeads, kDim, 0), lse = made(kHeads, 0, 0);
  const magi_tensor dout = made(kHeads, kDim, 1), dq = made(kHeads, kDim, 1);
  const magi_tensor dk = made(kHeadsKv, kDim, 1), dv = made(kHeadsKv, kDim, 0);
  const magi_attention_inputs inputs = {.struct_size = sizeof inputs, .q = &q, .k = &k, .v = &v};
  const magi_attention_result result = {.struct_size = sizeof result, .out = &out, .lse = &lse};
  magi_attention_gradients gradients = {
      .struct_size = sizeof gradients, .dout = &dout, .dq = &dq, .dk = &dk, .dv = &dv};
  magi_workspace workspace = {.struct_size = sizeof workspace};
  check(!magi_flex_attention_backward_workspace_bytes(mask, &inputs, &result, &gradients,
                                                      &workspace.size_bytes),
        "workspace");
  check(cudaMalloc(&workspace.data, workspace.size_bytes) == cudaSuccess, "cudaMalloc");
  gradients.workspace = &workspace;
  cudaStream_t stream = NULL;
  check(cudaStreamCreate(&stream) == cudaSuccess, "stream");
  check(!magi_flex_attention_forward(mask, &inputs, &result, stream), "forward");
  check(!magi_flex_attention_backward(mask, &inputs, &result, &gradients, stream), "backward");
  check(cudaStreamSynchronize(stream) == cudaSuccess, "stream");
  const int is_right = last_bits(&out) == 0x3f80 && (last_bits(&dk) & 0x7fff) < 0x3c00;
  puts(is_right ? "right" : "wrong");
  magi_mask_destroy(mask);
  return !is_right;
}
