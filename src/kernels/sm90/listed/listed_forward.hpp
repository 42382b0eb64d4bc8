// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/sm90/listed/joined_lists.hpp"
#include "kernels/sm90/listed/launch.hpp"
#include "magi/key_lists.hpp"

// The forward with key lists on Hopper. src/kernels/attention calls it, after it has checked the
// arguments and made the device current.
namespace magi::sm90 {

/// The largest head dim of q, k and v with key lists, other than those of latents.
inline constexpr std::int32_t kMaxListedDim = 128;

struct ListedForwardCall {
  const ListedInstance* instance = nullptr;  ///< null if there are no queries
  ListedForwardParams params;
  JoinedLayout joined;  ///< the workspace; it has no bytes if lists are not joined
};
ListedForwardCall listed_forward_call(const ForwardArgs& args, const KeyLists& lists);

/// Enqueues out, lse, max_logits and the lists' report.
void enqueue_listed_forward(const ForwardArgs& args, const KeyLists& lists,
                            const ListedForwardCall& call, std::int32_t sm_margin, void* workspace,
                            cudaStream_t stream);

}  // namespace magi::sm90
