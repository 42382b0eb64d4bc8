// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace magi::cli {

struct KernelBenchOptions {
  std::vector<std::string> masks;
  std::vector<std::int32_t> lengths;
  std::int32_t heads_q = 64;
  std::int32_t heads_kv = 8;
  std::int32_t head_dim = 128;  ///< of q and k
  std::int32_t head_dim_v = 0;  ///< 0: the same
  std::int32_t device = 0;
  std::int32_t sm_margin = 0;
  bool has_backward = false;  ///< time the backward too
  std::int32_t rounds = 9;
  double burst_seconds = 0.02;  ///< of a kernel in a round
  std::string cublas;           ///< path; empty: the system's

  std::int32_t dim_v() const { return head_dim_v == 0 ? head_dim : head_dim_v; }
};

enum class KernelPass : std::int32_t { Forward, Backward };
const char* pass_name(KernelPass pass);

/// One mask and length. Medians over rounds, each of which times the kernel and the GEMM.
struct KernelBenchRow {
  std::string mask;
  KernelPass pass = KernelPass::Forward;
  std::int32_t rows = 0;
  std::int64_t num_slices = 0;
  std::int64_t area = 0;  ///< visible pairs
  double seconds = 0.0;
  double flops_per_second = 0.0;
  std::optional<double> gemm_flops_per_second;  ///< absent: no cuBLAS
  std::optional<double> gemm_share;             ///< median of the rounds' ratios
  std::int32_t packed_heads = 0;
  std::optional<int> sm_clock_mhz;    ///< while the kernel ran
  std::optional<double> power_watts;  ///< while the kernel ran
};

struct KernelBenchReport {
  std::string gpu;
  std::vector<KernelBenchRow> rows;
};

/// Times attention calls on bfloat16 tensors, their lists made before. Throws std::runtime_error
/// where the machine has no fit GPU. `tell` gets a line per case and what is missing.
KernelBenchReport run_kernel_bench(const KernelBenchOptions& options,
                                   const std::function<void(const std::string&)>& tell);

/// Writes it for a person.
std::string to_table(const KernelBenchOptions& options, const KernelBenchReport& report);
std::string to_json(const KernelBenchOptions& options, const KernelBenchReport& report);

}  // namespace magi::cli
