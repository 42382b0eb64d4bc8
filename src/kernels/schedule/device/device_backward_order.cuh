// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/schedule/device/device_backward_build.cuh"

namespace magi {

inline constexpr int kRunThreads = 256;
inline constexpr int kRunWarps = kRunThreads / kWarpLanes;
inline constexpr int kValuesPerThread = 8;
inline constexpr std::int32_t kRunWindow = kRunThreads * kValuesPerThread;  ///< semaphores
/// Records that a warp compares: one per lane.
inline constexpr std::int32_t kFewOthers = kMostPlainOthers;
static_assert(kFewOthers == kWarpLanes);

/// The semaphores that another record shares with the warp's record.
struct SharedRange {
  std::int32_t begin;
  std::int32_t end;
  std::int32_t is_before;  ///< 1: it adds before the warp's, 0: after it
};

struct RunShared {
  SharedRange others[kRunWarps][kFewOthers];
  std::int32_t num_runs[kRunWarps];  ///< of a warp's record; kMany: the block finds them
  std::int32_t begins[kRunWarps];    ///< their places, or -1
  std::int32_t changes[kRunWindow];  ///< of the value, from one semaphore to the next
  std::int32_t run_begin;
  ScanStorage<std::int32_t, kRunThreads> scan;
  static constexpr std::int32_t kMany = -1;
};

/// Unordered sums are all cleared before the first record adds, like those of several
/// components.
__device__ __forceinline__ void share_sums(const BackwardBuild& build) {
  const auto stride = static_cast<std::int32_t>(gridDim.x * blockDim.x);
#pragma unroll 1
  for (auto i = static_cast<std::int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
       i < build.num_q_tiles; i += stride) {
    if (build.tile_components[i] == 1) build.tile_components[i] = 2;
  }
}

/// Fills in how many records add to the sums of each q tile: by one block, which reads many at
/// once.
__device__ __forceinline__ void count_additions(RunShared& shared, const BackwardBuild& build) {
  constexpr std::int32_t kQuads = 4;  // of a thread, side by side
  std::int32_t before = 0;            // additions, as many as the changes so far make
#pragma unroll 1
  for (std::int32_t window = 0; window < build.num_q_tiles; window += kRunThreads * kQuads * 4) {
    const std::int32_t first = window + static_cast<std::int32_t>(threadIdx.x) * kQuads * 4;
    int4 changes[kQuads];
    std::int32_t own = 0;
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      changes[i] = int4{};
      if (first + 4 * i >= build.num_q_tiles) continue;
      changes[i] = *reinterpret_cast<const int4*>(build.addition_changes + first + 4 * i);
    }
#pragma unroll
    for (const int4& c : changes) own += c.x + c.y + c.z + c.w;
    const auto scan = scan_block<kRunThreads>(own, shared.scan);
    std::int32_t count = before + scan.before;
    before += scan.total;
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const std::int32_t of_quad[4] = {changes[i].x, changes[i].y, changes[i].z, changes[i].w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        count += of_quad[j];
        const std::int32_t tile = first + 4 * i + j;
        if (tile < build.num_q_tiles) build.tile_semaphores[tile].num_additions = count;
      }
    }
  }
}

/// A record, and the others that add to dQ before it.
struct OrderedRecord {
  /// Empty if `record` is past the last one.
  __device__ OrderedRecord(const BackwardBuild& build, std::int32_t record,
                           std::int32_t num_records)
      : index(record) {
    if (record < num_records) mark = build.marks[record];
    if (is_empty()) return;
    place = build.places[mark.tile];
    of_component.begin = num_records - build.record_begins[mark.component];
    of_component.end = build.record_ends[mark.component];
  }

  __device__ bool is_empty() const { return mark.semaphore_begin >= mark.semaphore_end; }
  __device__ bool is_behind(const BackwardBuild& build, const RecordMark& other,
                            std::int32_t other_index) const {
    if (other.tile == mark.tile) return other_index < index;
    return build.places[other.tile] < place;
  }

  std::int32_t index;
  RecordMark mark;
  std::int32_t place = 0;  ///< of its k tile in the list
  Range of_component;      ///< records
};

/// Reserves room for runs. Returns its begin; -1: too little is left.
__device__ __forceinline__ std::int32_t reserve_runs(const BackwardBuild& build,
                                                     std::int32_t num_runs) {
  const unsigned begin = atomicAdd(&build.header->num_runs, static_cast<unsigned>(num_runs));
  if (std::int64_t{begin} + num_runs <= build.run_capacity) return static_cast<std::int32_t>(begin);
  build.header->outcome.is_overflowing = 1;
  build.header->outcome.num_items = 0;
  return -1;
}

/// Counts the records that add before a record to each of its semaphores, if they are few: a warp
/// takes one record, and each lane one of the others. If the main kernel converts sums, lanes hold
/// those that add after it too. A run begins where one of them begins or ends among the record's
/// semaphores, if the count changes there, or whether the record's addition is the last.
class FewRunsWriter {
 public:
  __device__ FewRunsWriter(RunShared& shared, const BackwardBuild& build)
      : others_(shared.others[warp_index()]),
        build_(build),
        is_converting_(build.header->is_converting != 0) {}

  /// Returns the record's number of runs; RunShared::kMany: it shares semaphores with too many.
  __device__ std::int32_t count(const OrderedRecord& record) {
    const RecordMark mark = record.mark;
    num_others_ = find_others(record);
    if (num_others_ > kFewOthers) return RunShared::kMany;
    if (is_converting_) is_converting_ = may_convert(mark);
    SharedRange own{};
    const bool is_own = lane_index() < num_others_;
    if (is_own) own = others_[lane_index()];
    at_[0] = own.begin;
    at_[1] = own.end;
    bool is_first[2] = {is_own && own.begin > mark.semaphore_begin,
                        is_own && own.end < mark.semaphore_end};
    Change changes[2];
    values_[0] = values_[1] = first_ = {};
#pragma unroll 1
    for (std::int32_t i = 0; i < num_others_; ++i) {
      const SharedRange other = others_[i];
      first_.add(other, other.begin == mark.semaphore_begin ? 1 : 0);
      const bool is_earlier = i < lane_index();
      is_first[0] &= !(is_earlier && other.begin == at_[0]);
      is_first[1] &= other.begin != at_[1] && !(is_earlier && other.end == at_[1]);
#pragma unroll
      for (int end = 0; end < 2; ++end) {
        changes[end].add(other,
                         (other.begin == at_[end] ? 1 : 0) - (other.end == at_[end] ? 1 : 0));
        values_[end].add(other,
                         (other.begin <= at_[end] ? 1 : 0) - (other.end <= at_[end] ? 1 : 0));
      }
    }
#pragma unroll
    for (int end = 0; end < 2; ++end) {
      const bool was_last = is_converting_ && values_[end].after == changes[end].after;
      const bool is_new = changes[end].before != 0 || was_last != is_last(values_[end]);
      runs_[end] = __ballot_sync(kFullWarp, is_first[end] && is_new);
    }
    return 1 + __popc(runs_[0]) + __popc(runs_[1]);
  }

  /// Writes the runs of the counted record from place `begin` on, and marks the sums that the main
  /// kernel converts.
  __device__ void write(const OrderedRecord& record, std::int32_t begin) const {
    std::int32_t places[2] = {begin + 1, begin + 1};
#pragma unroll
    for (int end = 0; end < 2; ++end) {
#pragma unroll 1
      for (unsigned left = runs_[end]; left != 0; left &= left - 1) {
        const std::int32_t other =
            __shfl_sync(kFullWarp, at_[end], __ffs(static_cast<int>(left)) - 1);
        places[0] += other < at_[0] ? 1 : 0;
        places[1] += other < at_[1] ? 1 : 0;
      }
    }
    const RecordMark mark = record.mark;
#pragma unroll
    for (int end = 0; end < 2; ++end) {
      if ((runs_[end] >> lane_index() & 1) != 0) {
        write_run(places[end], mark.component, at_[end], values_[end]);
      }
    }
    for_each_converted(mark, [&](std::int32_t semaphore) {
      build_.converted_tiles[semaphore - mark.component] = 1;
    });
    if (lane_index() != 0) return;
    write_run(begin, mark.component, mark.semaphore_begin, first_);
    build_.records[record.index].run_begin = begin;
    build_.records[record.index].run_end = begin + 1 + __popc(runs_[0]) + __popc(runs_[1]);
  }

 private:
  /// Additions to a semaphore before and after the record's, or the change of these numbers there.
  struct Change {
    std::int32_t before = 0;
    std::int32_t after = 0;

    __device__ __forceinline__ void add(const SharedRange& other, std::int32_t count) {
      before += other.is_before != 0 ? count : 0;
      after += other.is_before != 0 ? 0 : count;
    }
  };

  __device__ bool is_last(const Change& additions) const {
    return is_converting_ && additions.after == 0;
  }

  /// If the record converts sums, calls visit(semaphore) in a lane for each to which it adds
  /// last.
  template <typename Visit>
  __device__ void for_each_converted(const RecordMark& mark, Visit visit) const {
    if (!is_converting_) return;
#pragma unroll 1
    for (std::int32_t first = mark.semaphore_begin; first < mark.semaphore_end;
         first += kWarpLanes) {
      const std::int32_t semaphore = first + lane_index();
      bool is_shared = semaphore >= mark.semaphore_end;
#pragma unroll 1
      for (std::int32_t i = 0; i < num_others_; ++i) {
        const SharedRange other = others_[i];
        is_shared |= other.is_before == 0 && other.begin <= semaphore && semaphore < other.end;
      }
      if (!is_shared) visit(semaphore);
    }
  }

  /// Whether the record has enough steps for the conversions that it would make.
  __device__ bool may_convert(const RecordMark& mark) const {
    unsigned count = 0;
    for_each_converted(mark, [&](std::int32_t) { ++count; });
    const auto all = static_cast<std::int64_t>(__reduce_add_sync(kFullWarp, count));
    return mark.semaphore_end - mark.semaphore_begin >= build_.rule.conversion_distance * all;
  }

  /// Keeps the semaphores of earlier records, and of later ones that matter, cut to those of the
  /// record. Returns their number, at least kFewOthers + 1 if they are too many.
  __device__ std::int32_t find_others(const OrderedRecord& record) const {
    const RecordMark mark = record.mark;
    std::int32_t count = 0;
#pragma unroll 1
    for (std::int32_t first = record.of_component.begin;
         first < record.of_component.end && count <= kFewOthers; first += kWarpLanes) {
      const std::int32_t i = first + lane_index();
      RecordMark other;
      if (i < record.of_component.end) other = build_.marks[i];
      const bool meets = other.semaphore_begin < mark.semaphore_end &&
                         other.semaphore_end > mark.semaphore_begin && i != record.index;
      const bool is_before = meets && record.is_behind(build_, other, i);
      const bool matters = is_before || (meets && is_converting_);
      const unsigned found = __ballot_sync(kFullWarp, matters);
      const std::int32_t place = count + __popc(found & ((1u << lane_index()) - 1));
      if (matters && place < kFewOthers) {
        others_[place] = {max(other.semaphore_begin, mark.semaphore_begin), other.semaphore_end,
                          is_before ? 1 : 0};
      }
      count += __popc(found);
    }
    __syncwarp();
    return count;
  }

  __device__ void write_run(std::int32_t place, std::int32_t component, std::int32_t semaphore,
                            const Change& additions) const {
    SemaphoreRun run;
    run.q_tile = semaphore - component;
    run.value = additions.before;
    run.component = component;
    run.is_last = is_last(additions) ? 1 : 0;
    build_.runs[place] = run;
  }

  SharedRange* others_;
  const BackwardBuild& build_;
  bool is_converting_;  ///< the record completes sums that the main kernel converts
  std::int32_t num_others_ = 0;
  std::int32_t at_[2];  ///< where the lane's record begins and ends
  Change values_[2];    ///< there
  Change first_;        ///< at the record's first semaphore
  unsigned runs_[2];    ///< a bit per lane: a run begins at its record's begin, end
};

/// Finds the same by a block, if many records add before it: they begin and end among its
/// semaphores, and each change of their number begins a run.
class RunWriter {
 public:
  __device__ RunWriter(RunShared& shared, const BackwardBuild& build, const OrderedRecord& record)
      : shared_(shared), build_(build), record_(record), mark_(record.mark) {}

  __device__ void run() {
    const std::int32_t num_runs = for_each_window(true, [&](std::int32_t) {
      return scan_block<kRunThreads>(count_changes(), shared_.scan).total;
    });
    if (!reserve(num_runs)) return;
    const std::int32_t begin = shared_.run_begin;
    const bool has_windows = mark_.semaphore_end - mark_.semaphore_begin > kRunWindow;
    for_each_window(has_windows,
                    [&](std::int32_t num_before) { return write_runs(begin + num_before); });
  }

 private:
  /// Calls visit(runs before the window), which returns the runs that begin in it, for each window
  /// of the record's semaphores. Returns their sum.
  template <typename Visit>
  __device__ std::int32_t for_each_window(bool is_new, Visit visit) {
    std::int32_t num_runs = 0;
    value_ = 0;
#pragma unroll 1
    for (first_ = mark_.semaphore_begin; first_ < mark_.semaphore_end; first_ += kRunWindow) {
      if (is_new) find_changes();
      num_runs += visit(num_runs);
      value_ += scan_block<kRunThreads>(own_change(), shared_.scan).total;
    }
    first_ = mark_.semaphore_begin;
    return num_runs;
  }

  /// Fills `changes` for semaphores [first_, first_ + kRunWindow); value_ is the value before
  /// these.
  __device__ void find_changes() {
    const std::int32_t end = min(first_ + kRunWindow, mark_.semaphore_end);
    __syncthreads();
#pragma unroll 1
    for (auto i = static_cast<std::int32_t>(threadIdx.x); i < kRunWindow; i += kRunThreads) {
      shared_.changes[i] = 0;
    }
    __syncthreads();
#pragma unroll 1
    for (std::int32_t i = record_.of_component.begin + static_cast<std::int32_t>(threadIdx.x);
         i < record_.of_component.end; i += kRunThreads) {
      const RecordMark other = build_.marks[i];
      // Records of other components have other semaphores.
      const bool meets = other.semaphore_begin < end && other.semaphore_end > first_;
      if (!meets || !record_.is_behind(build_, other, i)) continue;
      atomicAdd(&shared_.changes[max(other.semaphore_begin, first_) - first_], 1);
      if (other.semaphore_end < end) atomicAdd(&shared_.changes[other.semaphore_end - first_], -1);
    }
    __syncthreads();
    if (threadIdx.x == 0) shared_.changes[0] -= value_;
    __syncthreads();
  }

  __device__ static std::int32_t own_first() {
    return static_cast<std::int32_t>(threadIdx.x) * kValuesPerThread;
  }
  __device__ bool begins_run(std::int32_t i) const {
    return shared_.changes[i] != 0 || first_ + i == mark_.semaphore_begin;
  }

  __device__ std::int32_t own_change() const {
    std::int32_t sum = 0;
#pragma unroll 1
    for (std::int32_t i = own_first(); i < own_first() + kValuesPerThread; ++i) {
      sum += shared_.changes[i];
    }
    return sum;
  }

  /// Counts the window's runs that begin with a semaphore of this thread.
  __device__ std::int32_t count_changes() const {
    std::int32_t count = 0;
#pragma unroll 1
    for (std::int32_t i = own_first(); i < own_first() + kValuesPerThread; ++i) {
      count += begins_run(i) ? 1 : 0;
    }
    return count;
  }

  /// Reserves room for the record's runs; false if too little is left.
  __device__ bool reserve(std::int32_t num_runs) {
    if (threadIdx.x == 0) {
      const std::int32_t begin = reserve_runs(build_, num_runs);
      shared_.run_begin = begin;
      if (begin >= 0) {
        build_.records[record_.index].run_begin = begin;
        build_.records[record_.index].run_end = begin + num_runs;
      }
    }
    __syncthreads();
    return shared_.run_begin >= 0;
  }

  /// Writes the window's runs from place `next` on. Returns their number.
  __device__ std::int32_t write_runs(std::int32_t next) {
    const auto scan = scan_block<kRunThreads>(count_changes(), shared_.scan);
    std::int32_t value = value_ + scan_block<kRunThreads>(own_change(), shared_.scan).before;
    next += scan.before;
#pragma unroll 1
    for (std::int32_t i = own_first(); i < own_first() + kValuesPerThread; ++i) {
      value += shared_.changes[i];
      if (!begins_run(i)) continue;
      SemaphoreRun run;
      run.q_tile = first_ + i - mark_.component;
      run.value = value;
      run.component = mark_.component;
      build_.runs[next++] = run;
    }
    return scan.total;
  }

  RunShared& shared_;
  const BackwardBuild& build_;
  const OrderedRecord record_;
  const RecordMark mark_;
  std::int32_t first_ = 0;  ///< semaphore of the window
  std::int32_t value_ = 0;  ///< before it
};

/// The records of a block, one per warp; the whole block takes those that a warp cannot. Few
/// records have a block each, as the block may have to take them all.
class RunsWriter {
 public:
  __device__ RunsWriter(RunShared& shared, const BackwardBuild& build, std::int32_t num_records)
      : shared_(shared), build_(build), num_records_(num_records) {
    const std::int32_t blocks = num_blocks();
    per_block_ = min((num_records + blocks - 1) / blocks, kRunWarps);
  }

  __device__ void run() {
    const std::int32_t blocks = num_blocks();
#pragma unroll 1
    for (std::int32_t first = static_cast<std::int32_t>(blockIdx.x) * per_block_;
         first < num_records_; first += blocks * per_block_) {
      run_some(first);
    }
  }

 private:
  /// The last block counts additions meanwhile.
  __device__ static std::int32_t num_blocks() { return static_cast<std::int32_t>(gridDim.x) - 1; }

  /// The block's records from `first` on.
  __device__ void run_some(std::int32_t first) {
    const bool has_record = warp_index() < per_block_;
    const OrderedRecord record(build_, has_record ? first + warp_index() : num_records_,
                               num_records_);
    FewRunsWriter writer(shared_, build_);
    const std::int32_t num_runs = record.is_empty() ? 0 : writer.count(record);
    if (lane_index() == 0) shared_.num_runs[warp_index()] = num_runs;
    const bool has_many = __syncthreads_or(num_runs == RunShared::kMany ? 1 : 0) != 0;
    if (warp_index() == 0) reserve();
    __syncthreads();
    const std::int32_t begin = shared_.begins[warp_index()];
    if (num_runs > 0 && begin >= 0) writer.write(record, begin);
#pragma unroll 1
    for (int warp = 0; has_many && warp < kRunWarps; ++warp) {
      if (shared_.num_runs[warp] != RunShared::kMany) continue;
      RunWriter(shared_, build_, OrderedRecord(build_, first + warp, num_records_)).run();
    }
    __syncthreads();
  }

  /// Reserves room for the runs of all warps at once; one warp calls.
  __device__ void reserve() const {
    std::int32_t own = 0;
    if (lane_index() < kRunWarps) own = max(shared_.num_runs[lane_index()], 0);
    const std::int32_t up_to = scan_warp(own, Sum{});
    const std::int32_t all = __shfl_sync(kFullWarp, up_to, kWarpLanes - 1);
    std::int32_t begin = 0;
    if (lane_index() == 0 && all > 0) begin = reserve_runs(build_, all);
    begin = __shfl_sync(kFullWarp, begin, 0);
    if (lane_index() < kRunWarps)
      shared_.begins[lane_index()] = begin < 0 ? -1 : begin + up_to - own;
  }

  RunShared& shared_;
  const BackwardBuild& build_;
  const std::int32_t num_records_;
  std::int32_t per_block_;
};

}  // namespace magi
