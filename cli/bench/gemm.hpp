// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "bench/dynamic_library.hpp"
#include "cuda/memory.hpp"

namespace magi::cli {

/// The yardstick of a run: a square matrix product of random bfloat16 values by cuBLAS.
class Gemm {
 public:
  static constexpr int kSize = 8192;
  static constexpr double kFlops = 2.0 * kSize * kSize * kSize;

  /// Opens cuBLAS at run time, `path` or where it is empty the system's; null where there is none.
  static std::unique_ptr<Gemm> open(const std::string& path);
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  void enqueue(cudaStream_t stream) const;

 private:
  struct Functions;
  explicit Gemm(std::unique_ptr<DynamicLibrary> library);

  std::unique_ptr<DynamicLibrary> library_;
  std::unique_ptr<Functions> functions_;
  void* handle_ = nullptr;
  DeviceBuffer a_, b_, c_;
};

}  // namespace magi::cli
