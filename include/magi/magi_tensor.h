/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MAGI_TENSOR_H
#define MAGI_TENSOR_H

#include <stddef.h>
#include <stdint.h>

/* A borrowed strided array; strides count elements. `dtype`: 0 float64, 1 float32, 2 float16,
 * 3 bfloat16, 4 int32, 5 int64. */
typedef struct magi_tensor {
  size_t struct_size;
  void* data;
  int32_t dtype;
  int32_t device; /* CUDA ordinal, -1: CPU */
  int32_t rank;   /* 1 to 4; 0 with data NULL: no tensor */
  int64_t shape[4];
  int64_t stride[4];
} magi_tensor;

#endif
