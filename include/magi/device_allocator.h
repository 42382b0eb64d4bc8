/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MAGI_DEVICE_ALLOCATOR_H
#define MAGI_DEVICE_ALLOCATOR_H

#include <stddef.h>
#include <stdint.h>

/* Device memory for use in the order of a stream (a cudaStream_t): allocate gives memory that work
 * enqueued later on `stream` may use, NULL where none is left; release takes it back for work
 * enqueued later still. */
typedef struct magi_device_allocator {
  size_t struct_size;
  void* context; /* passed to both; outlives the attention */
  void* (*allocate)(void* context, size_t size_bytes, int32_t device, void* stream);
  void (*release)(void* context, void* data, size_t size_bytes, int32_t device, void* stream);
} magi_device_allocator;

#endif
