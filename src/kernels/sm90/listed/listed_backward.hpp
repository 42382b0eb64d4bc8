// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/sm90/listed/joined_lists.hpp"
#include "kernels/sm90/listed/key_parts.hpp"
#include "magi/key_lists.hpp"

// The backward with key lists on Hopper. src/kernels/attention calls it, after it has checked the
// arguments and made the device current.
namespace magi::sm90 {

/// Parts of the memory of a call.
struct ListedBackwardMemory {
  float* delta = nullptr;    ///< [rows_q, heads_q]
  float* dk_sums = nullptr;  ///< [rows_k, heads_kv, dim_qk]
  float* dv_sums = nullptr;  ///< [rows_k, heads_kv, dim_v]; null for latents, which use dk_sums
  void* parts = nullptr;     ///< as key_parts_of says, if sums have an order
  JoinedLayout joined_layout = {};
  void* joined = nullptr;  ///< memory of this layout
};

/// A call with ordered sums of dk and dv: runs of queries, one after the other.
struct OrderedKeySums {
  KeyPartShape shape;  ///< shape of a run
  KeyPartLayout layout;
};
JoinedLayout joined_layout_of(const BackwardArgs& args, const KeyLists& lists);

OrderedKeySums key_parts_of(const BackwardArgs& args, const KeyLists& lists);

/// Enqueues dq, dsink, and dk and dv as float32 sums in `memory`; latents have one sum for both.
/// `sums`: null if these have no order.
void enqueue_listed_backward(const BackwardArgs& args, const KeyLists& lists,
                             std::int32_t sm_margin, const ListedBackwardMemory& memory,
                             const OrderedKeySums* sums, cudaStream_t stream);

}  // namespace magi::sm90
