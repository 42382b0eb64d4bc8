// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "comm/nvlink/peer_places.hpp"
#include "kernels/sm90/forward/launch.hpp"

// Senders that compete with the library's push kernel: single warps, alone on their multiprocessors
// or inside the forward kernel, whose warps 2 and 3 have no role.
namespace magi::bench {

inline constexpr int kRowBytes = 2048;  ///< of K or V: 8 heads of 128 in 16 bits

/// Rows of K and V on their way to a peer, where a row of both lies without a gap.
struct WarpPush {
  const std::byte* k = nullptr;
  const std::byte* v = nullptr;
  std::byte* to = nullptr;
  const comm::PushTask* tasks = nullptr;
  std::int32_t num_tasks = 0;
  std::int32_t num_warps = 1;           ///< of a CTA of the forward kernel: 1 or 2
  unsigned* ticket = nullptr;           ///< counts handed-out tasks; 0 between pushes
  unsigned* num_ended = nullptr;        ///< warps that have found no task; likewise
  std::uint64_t* arrived = nullptr;     ///< the peer's word
  std::uint64_t number = 0;             ///< what it is set to behind the rows
  std::uint64_t* end_time = nullptr;    ///< on this GPU: when that was. [ns]
  std::uint64_t* begin_time = nullptr;  ///< when the first warp took a task. [ns]
};

/// One warp on each of `num_ctas` multiprocessors.
void launch_warp_push(const WarpPush& push, int num_ctas, cudaStream_t stream);

/// The library's forward for bfloat16 at head dim 128, whose spare warps push what set_push was
/// given last.
sm90::ForwardInstance pushing_forward();
void set_push(const WarpPush& push);

/// A kernel that ends when `*word`, in host memory, is not 0, or after 50 ms.
void launch_gate(const std::int32_t* word, cudaStream_t stream);

}  // namespace magi::bench
