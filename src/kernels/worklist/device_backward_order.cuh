// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/worklist/device_backward_build.cuh"

namespace magi {

inline constexpr int kRunThreads = 128;
inline constexpr int kValuesPerThread = 16;
inline constexpr std::int32_t kRunWindow = kRunThreads * kValuesPerThread;  ///< semaphores

struct RunShared {
  std::int32_t changes[kRunWindow];  ///< of the value, from one semaphore to the next
  std::int32_t run_begin;
  ScanStorage<std::int32_t, kRunThreads> scan;
};

/// Finds how many records add to a semaphore of a record before it, a block for each record: the
/// records before it, of its component, begin and end over its semaphores, and each change of their
/// number begins a run.
class RunWriter {
 public:
  __device__ RunWriter(RunShared& shared, const BackwardBuild& build, std::int32_t record)
      : shared_(shared), build_(build), record_(record), mark_(build.marks[record]) {
    place_ = build.places[mark_.tile];
  }

  /// `num_records`: of the whole list, those left empty included.
  __device__ void run(std::int32_t num_records) {
    if (mark_.semaphore_begin >= mark_.semaphore_end) return;
    of_component_.begin = num_records - build_.record_begins[mark_.component];
    of_component_.end = build_.record_ends[mark_.component];
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
    for (std::int32_t i = of_component_.begin + static_cast<std::int32_t>(threadIdx.x);
         i < of_component_.end; i += kRunThreads) {
      const RecordMark other = build_.marks[i];
      // Those of other components have no semaphore of these.
      const bool meets = other.semaphore_begin < end && other.semaphore_end > first_;
      if (!meets || !comes_before(other, i)) continue;
      atomicAdd(&shared_.changes[max(other.semaphore_begin, first_) - first_], 1);
      if (other.semaphore_end < end) atomicAdd(&shared_.changes[other.semaphore_end - first_], -1);
    }
    __syncthreads();
    if (threadIdx.x == 0) shared_.changes[0] -= value_;
    __syncthreads();
  }

  __device__ bool comes_before(const RecordMark& other, std::int32_t index) const {
    if (other.tile == mark_.tile) return index < record_;
    return build_.places[other.tile] < place_;
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

  /// Of the window's runs that begin with a semaphore of this thread.
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
      const unsigned begin = atomicAdd(&build_.header->num_runs, static_cast<unsigned>(num_runs));
      const bool has_room = std::int64_t{begin} + num_runs <= build_.run_capacity;
      shared_.run_begin = has_room ? static_cast<std::int32_t>(begin) : -1;
      if (has_room) {
        build_.records[record_].run_begin = static_cast<std::int32_t>(begin);
        build_.records[record_].run_end = static_cast<std::int32_t>(begin) + num_runs;
      } else {
        build_.header->outcome.is_overflowing = 1;
        build_.header->outcome.num_items = 0;
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
  const std::int32_t record_;
  const RecordMark mark_;
  std::int32_t place_;      ///< of its k tile in the list
  Range of_component_;      ///< records
  std::int32_t first_ = 0;  ///< semaphore of the window
  std::int32_t value_ = 0;  ///< in front of it
};

}  // namespace magi
