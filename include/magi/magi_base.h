/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MAGI_BASE_H
#define MAGI_BASE_H

/* What every part of the C ABI uses; include magi/magi.h, which states the rules. */

#include <stddef.h>
#include <stdint.h>

#include "magi/magi_tensor.h"

#if defined(_WIN32)
#define MAGI_API
#else
#define MAGI_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Version and errors ---------------------------------------------------------------------- */

/* Grows by one with every incompatible change; compare with magi_abi_version() after loading. */
#define MAGI_ABI_VERSION 5

MAGI_API int32_t magi_abi_version(void);
/* "major.minor.patch" */
MAGI_API const char* magi_version(void);
/* GPU architectures that the library holds kernels for, such as "sm_90a", separated by spaces; ""
 * for a library of the CPU alone. */
MAGI_API const char* magi_gpu_architectures(void);

typedef int32_t magi_status;
enum {
  MAGI_OK = 0,
  MAGI_INVALID_ARGUMENT = 1, /* an argument is outside what is allowed */
  MAGI_CUDA_ERROR = 2,       /* a CUDA call failed: magi_last_cuda_error() */
  MAGI_COMM_ERROR = 3,       /* communication failed: magi_last_comm_failure() */
  MAGI_INTERNAL_ERROR = 4,   /* a defect of magi */
  MAGI_OUT_OF_MEMORY = 5     /* host memory */
};

enum {
  MAGI_COMM_TIMEOUT = 1,       /* a peer did not arrive before the deadline */
  MAGI_COMM_PEER_DIED = 2,     /* a peer's process or thread ended */
  MAGI_COMM_PLAN_MISMATCH = 3, /* ranks hold different plans */
  MAGI_COMM_ABORTED = 4,       /* a rank aborted the group */
  MAGI_COMM_SYSTEM = 5         /* the operating system refused a resource */
};

/* Message of the last failed call on this thread, "" before the first; valid until the next one. */
MAGI_API const char* magi_last_error_message(void);
/* MAGI_COMM_... of the last failed call on this thread; 0 unless that was a MAGI_COMM_ERROR. */
MAGI_API int32_t magi_last_comm_failure(void);
/* cudaError_t of the last failed call on this thread; 0 unless that was a MAGI_CUDA_ERROR. */
MAGI_API int32_t magi_last_cuda_error(void);

enum { MAGI_LOG_ERROR = 0, MAGI_LOG_WARN = 1, MAGI_LOG_INFO = 2, MAGI_LOG_DEBUG = 3 };
typedef void (*magi_log_fn)(void* context, int32_t level, const char* module, const char* text);
/* Replaces the sink of log lines up to `threshold` (default: stderr, those that MAGI_LOG_LEVEL
 * asks for, without it none); NULL: silence. The sink may be called from any thread, from several
 * at once, and may call the library. A thread that was giving a line to the former sink may still
 * be in it after this. */
MAGI_API magi_status magi_set_log_sink(magi_log_fn sink, void* context, int32_t threshold);

/* ---- Buffers: results whose size the library knows ------------------------------------------- */

typedef struct magi_buffer magi_buffer;
/* Text ends with a zero that size_bytes does not count; arrays are aligned for their type. */
MAGI_API const void* magi_buffer_data(const magi_buffer* buffer);
MAGI_API size_t magi_buffer_size_bytes(const magi_buffer* buffer);
MAGI_API void magi_buffer_destroy(magi_buffer* buffer);

/* ---- Tensors --------------------------------------------------------------------------------- */

enum {
  MAGI_FLOAT64 = 0,
  MAGI_FLOAT32 = 1,
  MAGI_FLOAT16 = 2,
  MAGI_BFLOAT16 = 3,
  MAGI_INT32 = 4,
  MAGI_INT64 = 5
};
#define MAGI_CPU_DEVICE (-1)

/* magi_tensor, the array that crosses the ABI, is in magi/magi_tensor.h. Optional tensors are NULL
 * pointers. */

#ifdef __cplusplus
}
#endif

#endif
