// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/schedule/device/device_backward_build.cuh"

namespace magi {

inline constexpr int kRunThreads = 256;
inline constexpr int kRunWarps = kRunThreads / kWarpLanes;
inline constexpr int kValuesPerThread = 8;
inline constexpr std::int32_t kRunWindow = kRunThreads * kValuesPerThread;  ///< semaphores
/// Records that a warp compares with one another: one per lane.
inline constexpr std::int32_t kFewBefore = kWarpLanes;

struct RunShared {
  Range before[kRunWarps][kFewBefore];  ///< semaphores of the records before a warp's
  std::int32_t num_runs[kRunWarps];     ///< of a warp's record; kMany: for the block
  std::int32_t begins[kRunWarps];       ///< where they lie, or -1
  std::int32_t changes[kRunWindow];     ///< of the value, from one semaphore to the next
  std::int32_t run_begin;
  ScanStorage<std::int32_t, kRunThreads> scan;
  static constexpr std::int32_t kMany = -1;
};

/// A record, and which others add to dQ before it.
struct OrderedRecord {
  /// Empty where `record` is behind the last one.
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

/// Takes room for runs. Returns where it begins; -1: there is not enough.
__device__ __forceinline__ std::int32_t reserve_runs(const BackwardBuild& build,
                                                     std::int32_t num_runs) {
  const unsigned begin = atomicAdd(&build.header->num_runs, static_cast<unsigned>(num_runs));
  if (std::int64_t{begin} + num_runs <= build.run_capacity) return static_cast<std::int32_t>(begin);
  build.header->outcome.is_overflowing = 1;
  build.header->outcome.num_items = 0;
  return -1;
}

/// Finds how many records add to a semaphore of a record before it, where these are few: a warp
/// for each record, whose lanes each hold one of those before. Where one of them begins or ends
/// over the record's semaphores a run begins, unless as many begin there as end.
class FewRunsWriter {
 public:
  __device__ FewRunsWriter(RunShared& shared, const BackwardBuild& build)
      : before_(shared.before[warp_index()]), build_(build) {}

  /// Returns how many runs the record has; RunShared::kMany: too many records are before it.
  __device__ std::int32_t count(const OrderedRecord& record) {
    const RecordMark mark = record.mark;
    const std::int32_t num_before = find_before(record);
    if (num_before > kFewBefore) return RunShared::kMany;
    Range own;
    const bool is_own = lane_index() < num_before;
    if (is_own) own = before_[lane_index()];
    bool is_first[2] = {is_own && own.begin > mark.semaphore_begin,
                        is_own && own.end < mark.semaphore_end};
    at_[0] = own.begin;
    at_[1] = own.end;
    std::int32_t changes[2] = {0, 0};
    values_[0] = values_[1] = first_value_ = 0;
#pragma unroll 1
    for (std::int32_t i = 0; i < num_before; ++i) {
      const Range other = before_[i];
      first_value_ += other.begin == mark.semaphore_begin ? 1 : 0;
      const bool is_earlier = i < lane_index();
      is_first[0] &= !(is_earlier && other.begin == at_[0]);
      is_first[1] &= other.begin != at_[1] && !(is_earlier && other.end == at_[1]);
#pragma unroll
      for (int end = 0; end < 2; ++end) {
        changes[end] += (other.begin == at_[end] ? 1 : 0) - (other.end == at_[end] ? 1 : 0);
        values_[end] += (other.begin <= at_[end] ? 1 : 0) - (other.end <= at_[end] ? 1 : 0);
      }
    }
#pragma unroll
    for (int end = 0; end < 2; ++end) {
      runs_[end] = __ballot_sync(kFullWarp, is_first[end] && changes[end] != 0);
    }
    return 1 + __popc(runs_[0]) + __popc(runs_[1]);
  }

  /// Writes the runs of the record that has been counted from place `begin` on.
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
    const std::int32_t component = record.mark.component;
#pragma unroll
    for (int end = 0; end < 2; ++end) {
      if ((runs_[end] >> lane_index() & 1) != 0) {
        write_run(places[end], at_[end] - component, values_[end], component);
      }
    }
    if (lane_index() != 0) return;
    write_run(begin, record.mark.semaphore_begin - component, first_value_, component);
    build_.records[record.index].run_begin = begin;
    build_.records[record.index].run_end = begin + 1 + __popc(runs_[0]) + __popc(runs_[1]);
  }

 private:
  /// Keeps the semaphores of the records before, cut to those of the record. Returns how many
  /// records there are, at least kFewBefore + 1 where there are too many.
  __device__ std::int32_t find_before(const OrderedRecord& record) const {
    const RecordMark mark = record.mark;
    std::int32_t count = 0;
#pragma unroll 1
    for (std::int32_t first = record.of_component.begin;
         first < record.of_component.end && count <= kFewBefore; first += kWarpLanes) {
      const std::int32_t i = first + lane_index();
      RecordMark other;
      if (i < record.of_component.end) other = build_.marks[i];
      const bool is_before = other.semaphore_begin < mark.semaphore_end &&
                             other.semaphore_end > mark.semaphore_begin && i != record.index &&
                             record.is_behind(build_, other, i);
      const unsigned found = __ballot_sync(kFullWarp, is_before);
      const std::int32_t place = count + __popc(found & ((1u << lane_index()) - 1));
      if (is_before && place < kFewBefore) {
        before_[place] = {max(other.semaphore_begin, mark.semaphore_begin), other.semaphore_end};
      }
      count += __popc(found);
    }
    __syncwarp();
    return count;
  }

  __device__ void write_run(std::int32_t place, std::int32_t q_tile, std::int32_t value,
                            std::int32_t component) const {
    SemaphoreRun run;
    run.q_tile = q_tile;
    run.value = value;
    run.component = component;
    build_.runs[place] = run;
  }

  Range* before_;
  const BackwardBuild& build_;
  std::int32_t at_[2];        ///< where the lane's record begins and ends
  std::int32_t values_[2];    ///< there
  unsigned runs_[2];          ///< a bit for each lane at whose record's begin, end a run begins
  std::int32_t first_value_;  ///< at the record's first semaphore
};

/// Finds the same where many records are before it, by a block: they begin and end over its
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
  /// Calls visit(runs before the window) for each window of the record's semaphores, which returns
  /// how many begin in it. Returns their sum.
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

  /// Fills `changes` for semaphores [first_, first_ + kRunWindow), in front of which the value is
  /// value_.
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
      // Those of other components have no semaphore of these.
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

  /// Takes room for the record's runs. False where there is not enough.
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

  /// Writes the window's runs from place `next` on. Returns how many there are.
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
  std::int32_t value_ = 0;  ///< in front of it
};

/// The records of a block, one per warp; what a warp leaves is the block's. Few records have a
/// block each, as the block may have to take them all.
class RunsWriter {
 public:
  __device__ RunsWriter(RunShared& shared, const BackwardBuild& build, std::int32_t num_records)
      : shared_(shared), build_(build), num_records_(num_records) {
    const auto blocks = static_cast<std::int32_t>(gridDim.x);
    per_block_ = min((num_records + blocks - 1) / blocks, kRunWarps);
  }

  __device__ void run() {
    const auto blocks = static_cast<std::int32_t>(gridDim.x);
#pragma unroll 1
    for (std::int32_t first = static_cast<std::int32_t>(blockIdx.x) * per_block_;
         first < num_records_; first += blocks * per_block_) {
      run_some(first);
    }
  }

 private:
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

  /// Takes room for all warps' runs at once: by one warp.
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
