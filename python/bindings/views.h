// SPDX-License-Identifier: Apache-2.0
// The form of tensors as DLPack's exchange interface tells it (version 1): without an object of
// Python for each shape and stride, and so in less time than it takes to ask for one attribute.
#pragma once

#include "magi/magi.h"

// DLTensor
typedef struct View {
  void* data;
  int32_t device_kind;
  int32_t device;
  int32_t rank;
  uint8_t type_kind;
  uint8_t type_bits;
  uint16_t type_lanes;
  const int64_t* shape;
  const int64_t* stride;
  uint64_t offset_bytes;
} View;

typedef int (*ReadView)(void* tensor, View* view);

// DLPackExchangeAPI, as far as it is used here
typedef struct ViewFunctions {
  uint32_t major_version;
  uint32_t minor_version;
  void* earlier;
  void* others[3];
  ReadView read_view;
} ViewFunctions;

// Whether a view has the shape, strides, type and device of a tensor of floats.
static int is_like(const View* view, const magi_tensor* tensor) {
  enum { kCpu = 1, kCuda = 2, kFloat = 2, kBfloat = 4 };
  static const int kBits[] = {64, 32, 16, 16};
  const int kind = tensor->dtype == MAGI_BFLOAT16 ? kBfloat : kFloat;
  if (view->type_kind != kind || view->type_bits != kBits[tensor->dtype] || view->type_lanes != 1 ||
      view->rank != tensor->rank || view->device_kind != (tensor->device < 0 ? kCpu : kCuda) ||
      (tensor->device >= 0 && view->device != tensor->device)) {
    return 0;
  }
  for (int axis = 0; axis < tensor->rank; ++axis) {
    const int64_t size = tensor->shape[axis];
    if (view->shape[axis] != size) return 0;
    if (size > 1 && view->stride[axis] != tensor->stride[axis]) return 0;
  }
  return 1;
}
