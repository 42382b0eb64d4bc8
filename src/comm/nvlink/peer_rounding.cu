// SPDX-License-Identifier: Apache-2.0
#include "comm/device_rows/device_rounding.cuh"
#include "comm/nvlink/peer_rounding.hpp"
#include "comm/nvlink/peer_wait.cuh"
#include "cuda/ptx/order.cuh"

namespace magi::comm {
namespace {

/// The most blocks that wait for peers, each an eighth of a multiprocessor. The other
/// multiprocessors are enough for work that the peers may be waiting for.
constexpr unsigned kMostWaitingRowBlocks = 32;

struct ArrivingSum {
  rounding::RoundedSum sum;
  PeerView view;
  RowArrival arrival;
};

/// Adds and rounds partials as they arrive. The first block publishes to the peers the partials
/// that this rank has written for them.
template <typename Element, bool kIsWide>
__global__ __launch_bounds__(rounding::kThreads) void round_arriving_kernel(
    const __grid_constant__ ArrivingSum params) {
  ptx::await_kernels_before();
  bool are_whole = true;
  if (threadIdx.x < 32) {
    const std::uint64_t pass = params.view.state->pass;
    const bool is_publishing = params.arrival.is_publishing && blockIdx.x == 0;
    if (is_publishing) publish_written(params.view, params.arrival, pass);
    are_whole = has_arrived(params.view, params.arrival, pass);
    ptx::fence_system();
  }
  rounding::round_row<Element, kIsWide>(params.sum, __syncthreads_and(are_whole) != 0);
}

}  // namespace

bool launch_round_arriving(const Partials& partials, const PeerView& view,
                           const RowArrival& arrival, cudaStream_t stream) {
  const unsigned num_blocks = rounding::count_blocks(partials);
  if (num_blocks == 0 || num_blocks > kMostWaitingRowBlocks) return false;
  rounding::launch(ArrivingSum{rounding::make_sum(partials), view, arrival}, partials, stream,
                   []<typename Element>(Element, bool is_wide) {
                     return is_wide ? round_arriving_kernel<Element, true>
                                    : round_arriving_kernel<Element, false>;
                   });
  return true;
}

}  // namespace magi::comm
