// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/math.hpp"
#include "comm/device_rows/device_row_layout.cuh"
#include "comm/nvlink/peer_kernels.hpp"
#include "comm/nvlink/peer_wait.cuh"
#include "cuda/check.hpp"
#include "cuda/element.cuh"
#include "cuda/launch.cuh"
#include "cuda/ptx/order.cuh"

namespace magi::comm {
namespace {

constexpr int kWarps = 16;
constexpr int kThreads = 32 * kWarps;
constexpr int kLoadsAhead = 4;
constexpr int kLinesPerPiece = 2 * kLoadsAhead;
constexpr int kUnitsPerPiece = 32 * 2 * kLoadsAhead;  ///< units that a warp copies at once

/// Records a rank's pass, before it is announced to the peers. Called by one thread.
__device__ void note_pass(PassState& state, const PassBegin& begin, std::uint64_t pass) {
  state.last_use[begin.area] = pass;
  state.digest[pass % kKeptDigests] = begin.digest;
  __threadfence();  // a block of the push that begins the pass reads the digest after the number
  state.pass = pass;
}

/// Announces the pass to a peer.
__device__ void announce_pass(const PeerView& view, const PassBegin& begin, std::uint64_t pass,
                              std::int32_t peer) {
  PeerControl& theirs = *view.control[peer];
  ptx::store_system(&theirs.digest[pass % kKeptDigests][view.rank], begin.digest);
  ptx::fence_system();
  ptx::store_system(&theirs.begun[view.rank], pass);
}

/// Waits until a peer has finished pass `last_use`, and checks that it began it for the same call.
__device__ bool await_credit(const PeerView& view, std::uint64_t last_use, std::int32_t peer) {
  if (last_use == 0) return true;
  const WaitSubject subject{PeerWait::Credit, peer, 0, last_use};
  return wait_for_word(view, &view.control[view.rank]->begun[peer], last_use + 1, subject) &&
         compare_call(view, subject);
}

/// Begins a pass, in one warp with a lane for each peer.
__global__ __launch_bounds__(32) void begin_pass_kernel(const __grid_constant__ PeerView view,
                                                        const __grid_constant__ PassBegin begin) {
  const auto peer = static_cast<std::int32_t>(threadIdx.x);
  PassState& state = *view.state;
  std::uint64_t pass = 0, last_use = 0;
  if (peer == 0) {
    pass = state.pass + 1;
    last_use = state.last_use[begin.area];
    note_pass(state, begin, pass);
  }
  __syncwarp();
  pass = __shfl_sync(~0U, pass, 0);
  last_use = __shfl_sync(~0U, last_use, 0);
  if (peer >= view.num_ranks) return;
  announce_pass(view, begin, pass, peer);
  await_credit(view, last_use, peer);
  if (begin.is_compared) {
    const WaitSubject subject{PeerWait::Credit, peer, 0, pass};
    if (wait_for_word(view, &view.control[view.rank]->begun[peer], pass, subject)) {
      compare_call(view, subject);
    }
  }
  ptx::fence_system();
}

/// The number of the new pass, and the pass that last used its area.
struct BegunPass {
  std::uint64_t pass, last_use;
};

/// Begins the pass in a push; called by one thread of each block. Every block reads the old state,
/// and the last one to arrive changes it, so each block knows the pass's number by itself.
__device__ BegunPass begin_in_push(const PeerView& view, const PassBegin& begin) {
  PassState& state = *view.state;
  // Past the L1 cache: a kernel beside this one reads the number on the same multiprocessor.
  const BegunPass found{ptx::load_acquire_system(&state.pass) + 1,
                        ptx::load_acquire_system(&state.last_use[begin.area])};
  __threadfence();
  if (atomicAdd(&state.begun_blocks, 1U) + 1 == gridDim.x) {
    state.begun_blocks = 0;
    note_pass(state, begin, found.pass);
    __threadfence();
  }
  return found;
}

/// The units of one section of a row, tensor after tensor.
struct SectionUnits {
  int begin[kMaxTensors];  ///< first unit of a tensor's row
  int end[kMaxTensors];    ///< number of units up to and with this tensor
  int line_shift;          ///< log2(lines per row of each tensor), if rows consist of lines
};

struct Section {
  int index, count;
};

/// Finds the units of a section. Returns their number per row. Called by one thread.
__device__ __forceinline__ int find_section(const RowPush& push, Section section,
                                            SectionUnits& units) {
  int per_row = 0;
  for (int t = 0; t < push.num_tensors; ++t) {
    const int row_units = push.from[t].row_units;
    units.begin[t] = section.index * row_units / section.count;
    per_row += (section.index + 1) * row_units / section.count - units.begin[t];
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

/// Copies a piece of a section of a task's rows. Called by a warp.
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

/// The blocks of a push that share a set of tasks: those of own rows, or those of rows for peers.
struct PushRole {
  bool is_own;
  int block, num_blocks;

  __device__ __forceinline__ explicit PushRole(const RowPush& push)
      : is_own(static_cast<int>(blockIdx.x) >= push.num_remote_blocks),
        block(static_cast<int>(blockIdx.x) - (is_own ? push.num_remote_blocks : 0)),
        num_blocks(is_own ? static_cast<int>(gridDim.x) - push.num_remote_blocks
                          : push.num_remote_blocks) {}
};

/// Returns whether this block is the last of its role to arrive, after the stores of all of them.
__device__ __forceinline__ bool is_last_block(unsigned* num_blocks_here, int num_blocks) {
  __shared__ bool is_last;
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::fence_system();
    is_last = atomicAdd(num_blocks_here, 1U) + 1 == static_cast<unsigned>(num_blocks);
    if (is_last) *num_blocks_here = 0;
    ptx::fence_system();
  }
  __syncthreads();
  return is_last;
}

/// Publishes to all other ranks that a section has arrived or, for own rows, to this rank.
__device__ __forceinline__ void publish_arrival(const PeerView& view, const RowPush& push,
                                                const PushRole& role, int section,
                                                std::uint64_t pass) {
  PassState& state = *view.state;
  unsigned* here =
      role.is_own ? &state.copied_blocks[push.move] : &state.pushed_blocks[push.move][section];
  if (!is_last_block(here, role.num_blocks)) return;
  const auto thread = static_cast<int>(threadIdx.x);
  ptx::fence_system();
  if (role.is_own) {
    if (thread >= push.num_sections) return;
    PeerControl& own = *view.control[view.rank];
    ptx::store_system(&own.arrived[push.move][thread][view.rank], pass);
  } else if (thread < view.num_ranks && thread != view.rank) {
    PeerControl& theirs = *view.control[thread];
    ptx::store_system(&theirs.arrived[push.move][section][view.rank], pass);
  }
}

/// Copies a piece of a section of a task's rows, if every row consists of lines of 32 units,
/// equally many for each tensor: kLinesPerPiece lines. Called by a warp.
template <typename Unit>
__device__ __forceinline__ void push_lines(const RowPush& push, const PushTask& task,
                                           const SectionUnits& units, int piece) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int tensor_shift = push.num_tensors - 1;  // one tensor or two
  const int count = (task.num_rows << tensor_shift) << units.line_shift;
  const int end = min(count, (piece + 1) * kLinesPerPiece);
  for (int first = piece * kLinesPerPiece; first < end; first += kLoadsAhead) {
    Unit held[kLoadsAhead];
    Unit* targets[kLoadsAhead];
#pragma unroll
    for (int k = 0; k < kLoadsAhead; ++k) {
      const int line = min(first + k, end - 1);  // copies the last line twice to avoid a branch
      const int tensor = (line >> units.line_shift) & tensor_shift;
      const int row = (line >> units.line_shift) >> tensor_shift;
      const int unit = units.begin[tensor] + 32 * (line & ((1 << units.line_shift) - 1)) + lane;
      held[k] =
          reinterpret_cast<const Unit*>(row_of(push.from[tensor], task.local_row + row))[unit];
      const auto offset =
          reinterpret_cast<std::int64_t>(row_of(push.to[tensor], task.remote_row + row));
      targets[k] = reinterpret_cast<Unit*>(push.region[task.peer] + offset) + unit;
    }
#pragma unroll
    for (int k = 0; k < kLoadsAhead; ++k) *targets[k] = held[k];
  }
}

/// Returns whether rows consist of such lines. Called by one thread.
__device__ __forceinline__ bool find_lines(const RowPush& push, SectionUnits& units) {
  const int width = units.end[0];
  units.line_shift = 31 - __clz(max(width / 32, 1));
  bool is_plain = push.num_tensors <= 2 && width == 32 << units.line_shift;
  for (int t = 0; t < push.num_tensors; ++t) {
    is_plain = is_plain && units.end[t] == width * (t + 1) &&
               push.from[t].head_units == push.from[t].row_units &&
               push.to[t].head_units == push.to[t].row_units;
  }
  return is_plain;
}

/// Copies the sections of a push and publishes each. Called by all threads of a block.
template <typename Unit>
__device__ __forceinline__ void push_sections(const PeerView& view, const RowPush& push,
                                              std::uint64_t pass) {
  __shared__ SectionUnits units;
  __shared__ int per_row;
  __shared__ bool are_lines;
  const PushRole role(push);
  const PushTask* tasks = push.tasks + (role.is_own ? push.num_remote : 0);
  const int num_tasks = role.is_own ? push.num_own : push.num_remote;
  const int num_sections = role.is_own ? 1 : push.num_sections;
  const int warp = role.block + role.num_blocks * static_cast<int>(threadIdx.x / 32);
  for (int section = 0; section < num_sections; ++section) {
    if (threadIdx.x == 0) {
      per_row = find_section(push, {section, num_sections}, units);
      are_lines = find_lines(push, units);
    }
    __syncthreads();
    const int pieces = (kRowsPerPush * per_row + kUnitsPerPiece - 1) / kUnitsPerPiece;
    for (int i = warp; i < num_tasks * pieces; i += role.num_blocks * kWarps) {
      if (are_lines) {
        push_lines<Unit>(push, tasks[i / pieces], units, i % pieces);
      } else {
        push_piece<Unit>(push, tasks[i / pieces], units, per_row, i % pieces);
      }
    }
    publish_arrival(view, push, role, section, pass);
  }
}

struct PushParams {
  PeerView view;
  RowPush push;
  PassBegin begin;     ///< for a push that begins its pass
  RowArrival arrival;  ///< for a push that also awaits rows of peers
};

/// Awaits rows of peers in the first block, after its part of the push. All blocks of the push are
/// resident by then, so only work that waits for the whole kernel waits for this block.
__device__ __forceinline__ void await_in_push(const PushParams& params, std::uint64_t pass) {
  if (!params.push.is_awaiting || blockIdx.x != 0 || threadIdx.x >= 32) return;
  await_arrival(params.view, params.arrival, pass);
  ptx::fence_system();
  ptx::fence_async_global();
}

template <typename Unit>
__global__ __launch_bounds__(kThreads,
                             2) void push_kernel(const __grid_constant__ PushParams params) {
  if (params.push.is_beside) ptx::launch_dependents();
  const PassState& state = *params.view.state;
  const std::uint64_t pass = state.pass;
  if (state.is_failed == 0) push_sections<Unit>(params.view, params.push, pass);
  await_in_push(params, pass);
}

/// A push that begins its pass. It has few blocks, and each waits for credit itself.
template <typename Unit>
__global__ __launch_bounds__(kThreads,
                             2) void first_push_kernel(const __grid_constant__ PushParams params) {
  const PeerView& view = params.view;
  __shared__ BegunPass begun;
  if (threadIdx.x == 0) begun = begin_in_push(view, params.begin);
  __syncthreads();
  // The kernel beside this one starts once all blocks are here, so it reads the new pass's number.
  if (params.push.is_beside) ptx::launch_dependents();
  const auto peer = static_cast<std::int32_t>(threadIdx.x);
  bool has_credit = true;
  if (peer < view.num_ranks) {
    if (blockIdx.x == 0) announce_pass(view, params.begin, begun.pass, peer);
    has_credit = await_credit(view, begun.last_use, peer) && view.state->is_failed == 0;
    ptx::fence_system();
  }
  if (__syncthreads_and(has_credit)) push_sections<Unit>(view, params.push, begun.pass);
  if (!params.push.is_awaiting || blockIdx.x != 0) return;
  // Once the pass's number is stored, its digest is too.
  while (ptx::load_acquire_system(&view.state->pass) < begun.pass) ptx::sleep_ns(100);
  await_in_push(params, begun.pass);
}

struct AwaitParams {
  PeerView view;
  RowArrival arrival;
};

/// Awaits rows, in one warp.
__global__ __launch_bounds__(32) void await_kernel(const __grid_constant__ AwaitParams params) {
  ptx::await_kernels_before();
  const std::uint64_t pass = params.view.state->pass;
  if (params.arrival.is_publishing) publish_written(params.view, params.arrival, pass);
  await_arrival(params.view, params.arrival, pass);
  ptx::fence_system();
  ptx::fence_async_global();
}

}  // namespace

void launch_begin_pass(const PeerView& view, const PassBegin& begin, cudaStream_t stream) {
  begin_pass_kernel<<<1, 32, 0, stream>>>(view, begin);
  cuda_check(cudaGetLastError(), "begin_pass_kernel");
}

void launch_push(const PeerView& view, RowPush push, PushBlocks blocks,
                 const std::optional<PassBegin>& begin, const RowArrival* awaited,
                 cudaStream_t stream) {
  const auto count = static_cast<std::size_t>(push.num_tensors);
  const std::int64_t unit = common_unit({push.from, count}, {push.to, count});
  for (std::size_t t = 0; t < count; ++t) {
    use_units(push.from[t], static_cast<std::size_t>(unit));
    use_units(push.to[t], static_cast<std::size_t>(unit));
  }
  std::int64_t per_row = 0;
  for (std::size_t t = 0; t < count; ++t) per_row += push.from[t].row_units;
  const std::int64_t pieces_of_task =
      ceil_div(kRowsPerPush * per_row, std::int64_t{kUnitsPerPiece});
  const auto blocks_of = [&](std::int32_t num_tasks, std::int32_t most) {
    const std::int64_t wanted = ceil_div(num_tasks * pieces_of_task, std::int64_t{kWarps});
    return static_cast<std::int32_t>(std::min<std::int64_t>(wanted, most));
  };
  // A push publishes every move to all ranks, even to those that receive no rows.
  push.num_remote_blocks = std::max(blocks_of(push.num_remote, blocks.remote), 1);
  push.is_awaiting = awaited != nullptr;
  const std::int32_t grid = push.num_remote_blocks + blocks_of(push.num_own, blocks.own);
  const bool is_first = begin && !begin->is_compared && grid <= kMostWaitingBlocks;
  if (begin && !is_first) launch_begin_pass(view, *begin, stream);
  const PushParams params{.view = view,
                          .push = push,
                          .begin = begin.value_or(PassBegin{}),
                          .arrival = awaited == nullptr ? RowArrival{} : *awaited};
  with_unit(unit, [&]<typename Unit>(Unit) {
    const auto kernel = is_first ? first_push_kernel<Unit> : push_kernel<Unit>;
    kernel<<<static_cast<unsigned>(grid), kThreads, 0, stream>>>(params);
  });
  cuda_check(cudaGetLastError(), "push_kernel");
}

void launch_await(const PeerView& view, const RowArrival& arrival, cudaStream_t stream) {
  if (arrival.sources == 0 && !arrival.is_publishing) return;
  launch_ahead(await_kernel, 1, 32, 0, AwaitParams{view, arrival}, stream);
}

}  // namespace magi::comm
