// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/math.hpp"
#include "comm/device_row_layout.cuh"
#include "comm/peer_kernels.hpp"
#include "cuda/check.hpp"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/system.cuh"

namespace magi::comm {
namespace {

static_assert(kMaxPeers <= 32, "a lane for each peer");

constexpr int kWarps = 16;
constexpr int kThreads = 32 * kWarps;
constexpr int kLoadsAhead = 4;
constexpr int kUnitsPerPiece = 32 * 4 * kLoadsAhead;  ///< of a task that one warp copies at a time

/// What a wait is for, for the mailbox.
struct WaitSubject {
  PeerWait what;
  std::int32_t peer;
  std::int32_t move;
};

/// The first failure of this rank goes into the mailbox.
__device__ void report(const PeerView& view, const WaitSubject& subject, PeerWait failed,
                       std::uint64_t expected, std::uint64_t seen) {
  PeerMailbox& box = *view.mailbox;
  if (atomicCAS_system(&box.is_closed, 0, 1) != 0) return;
  const std::uint64_t slot = view.state->pass % kKeptDigests;
  box.peer = subject.peer;
  box.move = subject.move;
  box.expected = expected;
  box.seen = seen;
  box.digest = view.state->digest;
  box.peer_digest = view.control[view.rank]->digest[slot][subject.peer];
  ptx::fence_system();
  ptx::store_system(reinterpret_cast<std::int32_t*>(&box.failed),
                    static_cast<std::int32_t>(failed));
}

/// Whether a peer that has begun this pass, and no pass so far ahead that its digest is gone, is in
/// the same one.
__device__ bool is_same_plan(const PeerView& view, std::int32_t peer) {
  const PeerControl& own = *view.control[view.rank];
  const std::uint64_t pass = view.state->pass;
  const std::uint64_t begun = ptx::load_acquire_system(&own.begun[peer]);
  if (begun < pass) return true;  // not known yet
  const std::uint64_t digest = ptx::load_acquire_system(&own.digest[pass % kKeptDigests][peer]);
  return digest == view.state->digest || ptx::load_acquire_system(&own.begun[peer]) >= pass + 2;
}

/// Waits until a word reaches a value; false after a failure, which is in the mailbox then.
__device__ bool wait_for_word(const PeerView& view, const std::uint64_t* word, std::uint64_t value,
                              const WaitSubject& subject) {
  constexpr int kPollsPerCheck = 32;
  const PeerControl& own = *view.control[view.rank];
  const std::uint64_t start = ptx::global_time_ns();
  for (int poll = 1;; ++poll) {
    const std::uint64_t seen = ptx::load_acquire_system(word);
    if (seen >= value) return true;
    if (poll % kPollsPerCheck != 0) continue;
    if (ptx::load_acquire_system(&view.mailbox->is_closed) != 0) return false;
    PeerWait failed = PeerWait::None;
    if (ptx::load_acquire_system(&own.aborted[subject.peer]) != 0) failed = PeerWait::Left;
    if (!is_same_plan(view, subject.peer)) failed = PeerWait::OtherPlan;
    if (ptx::global_time_ns() - start > view.deadline_ns) failed = subject.what;
    if (failed != PeerWait::None) {
      report(view, subject, failed, value, seen);
      return false;
    }
    ptx::sleep_ns(100);
  }
}

/// One warp, a lane for each peer.
__global__ __launch_bounds__(32) void begin_pass_kernel(
    const __grid_constant__ PeerView view, std::int32_t area, std::uint64_t digest) {
  const auto peer = static_cast<std::int32_t>(threadIdx.x);
  PassState& state = *view.state;
  std::uint64_t pass = 0, last_use = 0;
  if (peer == 0) {
    pass = ++state.pass;
    last_use = state.last_use[area];
    state.last_use[area] = pass;
    state.digest = digest;
  }
  __syncwarp();
  pass = __shfl_sync(~0U, pass, 0);
  last_use = __shfl_sync(~0U, last_use, 0);
  if (peer >= view.num_ranks) return;
  PeerControl& theirs = *view.control[peer];
  ptx::store_system(&theirs.digest[pass % kKeptDigests][view.rank], digest);
  ptx::fence_system();
  ptx::store_system(&theirs.begun[view.rank], pass);
  if (last_use > 0) {
    const PeerControl& own = *view.control[view.rank];
    wait_for_word(view, &own.begun[peer], last_use + 1, {PeerWait::Credit, peer, 0});
  }
  ptx::fence_system();
}

/// The units of one section of a row: those of each tensor, one after the other.
struct SectionUnits {
  int begin[kMaxTensors];  ///< first unit of a tensor's row
  int end[kMaxTensors];    ///< counted over the tensors so far
};

/// By one thread. Returns the units of a row.
__device__ __forceinline__ int find_section(const RowPush& push, int section, SectionUnits& units) {
  int per_row = 0;
  for (int t = 0; t < push.num_tensors; ++t) {
    const int row_units = push.from[t].row_units;
    units.begin[t] = section * row_units / push.num_sections;
    per_row += (section + 1) * row_units / push.num_sections - units.begin[t];
    units.end[t] = per_row;
  }
  return per_row;
}

/// A lane's place in the units of a task.
struct UnitPlace {
  int row, within;

  __device__ __forceinline__ void advance(int per_row) {
    within += 32;
    while (within >= per_row) {
      within -= per_row;
      ++row;
    }
  }
};

template <typename Unit>
struct UnitMove {
  const Unit* from;
  Unit* to;
};

template <typename Unit>
__device__ __forceinline__ UnitMove<Unit> find_unit(const RowPush& push, const PushTask& task,
                                                    const SectionUnits& units, UnitPlace place) {
  int tensor = 0;
  while (tensor + 1 < push.num_tensors && place.within >= units.end[tensor]) ++tensor;
  const int before = tensor == 0 ? 0 : units.end[tensor - 1];
  const int unit = place.within - before + units.begin[tensor];
  const DeviceRows& from = push.from[tensor];
  const DeviceRows& to = push.to[tensor];
  const auto offset = reinterpret_cast<std::int64_t>(row_of(to, task.remote_row + place.row));
  return {unit_of<Unit>(from, row_of(from, task.local_row + place.row), unit),
          unit_of<Unit>(to, push.region[task.peer] + offset, unit)};
}

/// One warp copies a piece of a section of a task's rows.
template <typename Unit>
__device__ __forceinline__ void push_piece(const RowPush& push, const PushTask& task,
                                           const SectionUnits& units, int per_row, int piece) {
  const int count = task.num_rows * per_row;
  const int first = piece * kUnitsPerPiece + static_cast<int>(threadIdx.x) % 32;
  const int end = min(count, (piece + 1) * kUnitsPerPiece);
  UnitPlace place{first / per_row, first % per_row};
  for (int i = first; i < end; i += 32 * kLoadsAhead) {
    Unit held[kLoadsAhead];
    Unit* targets[kLoadsAhead];
#pragma unroll
    for (int k = 0; k < kLoadsAhead; ++k) {
      if (i + 32 * k >= end) continue;
      const auto move = find_unit<Unit>(push, task, units, place);
      held[k] = *move.from;
      targets[k] = move.to;
      place.advance(per_row);
    }
#pragma unroll
    for (int k = 0; k < kLoadsAhead; ++k) {
      if (i + 32 * k < end) *targets[k] = held[k];
    }
  }
}

/// Tells all ranks, behind the stores of all blocks, that a section has arrived.
__device__ __forceinline__ void tell_arrival(const PeerView& view, int move, int section) {
  __shared__ bool is_last;
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::fence_system();
    unsigned* pushed = &view.state->pushed_blocks[move][section];
    is_last = atomicAdd(pushed, 1U) + 1 == gridDim.x;
    if (is_last) *pushed = 0;
    ptx::fence_system();
  }
  __syncthreads();
  if (is_last && threadIdx.x < static_cast<unsigned>(view.num_ranks)) {
    ptx::fence_system();
    PeerControl& theirs = *view.control[threadIdx.x];
    ptx::store_system(&theirs.arrived[move][section][view.rank], view.state->pass);
  }
}

template <typename Unit>
__global__ __launch_bounds__(kThreads) void push_kernel(const __grid_constant__ PeerView view,
                                                        const __grid_constant__ RowPush push) {
  __shared__ SectionUnits units;
  __shared__ int per_row;
  if (push.is_beside) ptx::launch_dependents();
  const int warp = static_cast<int>(blockIdx.x + gridDim.x * (threadIdx.x / 32));
  for (int section = 0; section < push.num_sections; ++section) {
    if (threadIdx.x == 0) per_row = find_section(push, section, units);
    __syncthreads();
    const int pieces = (kRowsPerPush * per_row + kUnitsPerPiece - 1) / kUnitsPerPiece;
    for (int i = warp; i < push.num_tasks * pieces; i += static_cast<int>(gridDim.x) * kWarps) {
      push_piece<Unit>(push, push.tasks[i / pieces], units, per_row, i % pieces);
    }
    tell_arrival(view, push.move, section);
  }
}

/// One warp, a lane for each peer.
__global__ __launch_bounds__(32) void await_kernel(
    const __grid_constant__ PeerView view, const __grid_constant__ RowArrival arrival) {
  const auto peer = static_cast<std::int32_t>(threadIdx.x);
  bool is_whole = true;
  if (peer < view.num_ranks && (arrival.sources >> peer & 1) != 0) {
    const PeerControl& own = *view.control[view.rank];
    const WaitSubject subject{PeerWait::Rows, peer, arrival.move};
    for (std::int32_t section = arrival.num_sections - 1; section >= 0 && is_whole; --section) {
      is_whole =
          wait_for_word(view, &own.arrived[arrival.move][section][peer], view.state->pass, subject);
    }
    if (is_whole && !is_same_plan(view, peer)) {
      report(view, subject, PeerWait::OtherPlan, view.state->pass, view.state->pass);
      is_whole = false;
    }
  }
  if (!__all_sync(~0U, is_whole)) {
    constexpr std::uint16_t kNotANumber = 0xffff;  // in every floating-point type
    auto* data = reinterpret_cast<std::uint16_t*>(arrival.data);
    for (std::int64_t i = peer; i < arrival.size_bytes / 2; i += 32) data[i] = kNotANumber;
  }
  ptx::fence_system();
  ptx::fence_async_global();
}

}  // namespace

void launch_begin_pass(const PeerView& view, std::int32_t area, std::uint64_t digest,
                       cudaStream_t stream) {
  begin_pass_kernel<<<1, 32, 0, stream>>>(view, area, digest);
  cuda_check(cudaGetLastError(), "begin_pass_kernel");
}

void launch_push(const PeerView& view, RowPush push, std::int32_t num_blocks, cudaStream_t stream) {
  const auto count = static_cast<std::size_t>(push.num_tensors);
  const std::int64_t unit = common_unit({push.from, count}, {push.to, count});
  for (std::size_t t = 0; t < count; ++t) {
    use_units(push.from[t], static_cast<std::size_t>(unit));
    use_units(push.to[t], static_cast<std::size_t>(unit));
  }
  std::int64_t per_row = 0;
  for (std::size_t t = 0; t < count; ++t) per_row += push.from[t].row_units;
  const std::int64_t num_pieces =
      push.num_tasks * ceil_div(kRowsPerPush * per_row, std::int64_t{kUnitsPerPiece});
  const auto grid = static_cast<unsigned>(
      std::clamp<std::int64_t>(ceil_div(num_pieces, std::int64_t{kWarps}), 1, num_blocks));
  const auto launch = [&]<typename Unit>(Unit) {
    push_kernel<Unit><<<grid, kThreads, 0, stream>>>(view, push);
  };
  if (unit == kLargestUnit) {
    launch(uint4{});
  } else if (unit == 8) {
    launch(std::uint64_t{});
  } else if (unit == 4) {
    launch(std::uint32_t{});
  } else {
    launch(std::uint16_t{});
  }
  cuda_check(cudaGetLastError(), "push_kernel");
}

void launch_await(const PeerView& view, const RowArrival& arrival, cudaStream_t stream) {
  if (arrival.sources == 0) return;
  await_kernel<<<1, 32, 0, stream>>>(view, arrival);
  cuda_check(cudaGetLastError(), "await_kernel");
}

}  // namespace magi::comm
