// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "magi/key_lists.hpp"

// The backward under lists on Hopper behind src/kernels/attention, which has checked the arguments
// and made the device current.
namespace magi::sm90 {

/// Parts of the memory of a call.
struct ListedBackwardMemory {
  float* delta = nullptr;        ///< [rows_q, heads_q], like corrections
  float* corrections = nullptr;  ///< of the lse of large rows
  float* dk_sums = nullptr;      ///< [rows_k, heads_kv, dim_qk]
  float* dv_sums = nullptr;      ///< [rows_k, heads_kv, dim_v]
};

/// Enqueues dq, dsink, and dk and dv as float32 sums in `memory`.
void enqueue_listed_backward(const BackwardArgs& args, const KeyLists& lists,
                             std::int32_t sm_margin, const ListedBackwardMemory& memory,
                             cudaStream_t stream);

}  // namespace magi::sm90
