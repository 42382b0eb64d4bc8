// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ranks/gpu_group.hpp"

// `magi bench dist`: attention over the GPUs of one host beside what other systems do. A cell is a
// mask, a number of tokens per rank and a number of ranks; its sides are what is timed.
namespace magi::cli {

/// Default is the library's distributed attention; Alone is its kernel with the whole sequence on
/// every GPU at once; the others are baselines that run the same kernel.
enum class DistSide : std::int32_t { Alone, Default, Ulysses, Ring, AllGather, Usp };
inline constexpr std::array kDistSides = {DistSide::Alone, DistSide::Default,   DistSide::Ulysses,
                                          DistSide::Ring,  DistSide::AllGather, DistSide::Usp};
const char* dist_side_name(DistSide side);
/// "ours", "alone" or "baseline".
const char* dist_side_kind(DistSide side);

inline constexpr std::array kDistPasses = {"forward", "backward"};

struct DistBenchOptions {
  std::vector<std::string> masks;
  std::vector<std::int32_t> tokens;  ///< per rank, even
  std::vector<std::int32_t> ranks;   ///< empty: 1, 2, 4 and 8, those that there are GPUs for
  std::int32_t heads_q = 64;
  std::int32_t heads_kv = 8;
  std::int32_t head_dim = 128;
  bool is_cpu = false;  ///< ranks compute on the CPU, in float32
  std::optional<Transport> transport;
  std::string nccl;  ///< path of the library; empty: see NcclOptions
  bool has_baselines = true;
  std::array<bool, 2> times_pass = {true, true};  ///< forward, backward
  std::int32_t rounds = 9;
  std::int32_t deadline_seconds = 100;
};

/// A pass of a side. Seconds are those of the slowest rank; bytes those of the rank that sent most.
struct DistPassFigures {
  double median_seconds = 0.0;
  double low_seconds = 0.0;
  double high_seconds = 0.0;
  double flops_per_second = 0.0;  ///< per rank: 4 or 10 * area * query heads * head dim
  double share = 0.0;             ///< of the kernel alone, median of the rounds' ratios
  double silent_seconds = 0.0;    ///< median of the attends alone, without any exchange; 0: none
  std::int64_t bytes_sent = 0;

  double exposed_seconds() const { return median_seconds - silent_seconds; }
};

/// A side of a cell; plain memory that processes share. `is_there`: it runs on so many ranks and
/// heads.
struct DistSideFigures {
  bool is_there = false;
  bool has_memory = false;         ///< whether the next but one are known
  double error = 0.0;              ///< from the kernel alone, norm over norm, worst tensor and rank
  std::int64_t extra_bytes = 0;    ///< of device memory beyond inputs and results, at the peak
  std::int64_t outside_bytes = 0;  ///< windows, schedules and what else stays from call to call
  std::array<DistPassFigures, 2> passes;
};

struct DistCell {
  std::int32_t mask = 0;  ///< index into the options' masks
  std::int32_t tokens = 0;
  std::int32_t ranks = 0;
  std::int32_t rounds = 0;
  std::int64_t num_slices = 0;
  std::int64_t area = 0;
  Transport transport = Transport::Shm;
  std::array<DistSideFigures, kDistSides.size()> sides;
};

struct DistReport {
  std::string device;  ///< name of a rank's GPU, or "CPU"
  std::vector<DistCell> cells;
};

/// Checks every side of every cell against the kernel alone, then times them all in turns, in
/// random order. Starts the ranks itself, as processes with a GPU each, or runs as the one rank
/// that a launcher started; then the others than rank 0 get no cells. `tell` gets lines of progress
/// on rank 0. Throws InvalidArgument naming the flag that does not fit the machine or the recorded
/// documents, EnvironmentUnfit for ranks that cannot run, InternalError for a side that computes
/// other numbers.
DistReport run_dist_bench(const DistBenchOptions& options,
                          const std::function<void(const std::string&)>& tell);

/// A cell in one line: TFLOP/s of the kernel alone, and the shares of it that the sides reach.
std::string to_summary(const DistBenchOptions& options, const DistCell& cell);
/// For a person.
std::string to_table(const DistBenchOptions& options, const DistReport& report);
/// Cells have the keys of those of bench/dist_attention.py.
std::string to_json(const DistBenchOptions& options, const DistReport& report);
/// File name and SVG text of a picture for each number of ranks, tokens and pass: by mask, the
/// share of the kernel alone that every side reaches.
std::vector<std::pair<std::string, std::string>> to_plots(const DistBenchOptions& options,
                                                          const DistReport& report);

}  // namespace magi::cli
