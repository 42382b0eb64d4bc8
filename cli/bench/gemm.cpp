// SPDX-License-Identifier: Apache-2.0
#include "bench/gemm.hpp"

#include <stdexcept>
#include <vector>

#include "common/random_values.hpp"

namespace magi::cli {
namespace {

// Values of cuBLAS' and CUDA's enumerations.
constexpr int kNotTransposed = 0;
constexpr int kTransposed = 1;
constexpr int kBfloat16 = 14;
constexpr int kComputeFloat32 = 68;
constexpr int kDefaultAlgorithm = -1;

void check(int status, const char* call) {
  if (status != 0)
    throw std::runtime_error(std::string(call) + ": status " + std::to_string(status));
}

DeviceBuffer random_matrix(std::uint64_t seed) {
  return random_bfloat16(std::int64_t{Gemm::kSize} * Gemm::kSize, seed);
}

}  // namespace

struct Gemm::Functions {
  int (*create)(void** handle) = nullptr;
  int (*destroy)(void* handle) = nullptr;
  int (*set_stream)(void* handle, cudaStream_t stream) = nullptr;
  int (*multiply)(void* handle, int op_a, int op_b, int m, int n, int k, const void* alpha,
                  const void* a, int type_a, int stride_a, const void* b, int type_b, int stride_b,
                  const void* beta, void* c, int type_c, int stride_c, int compute,
                  int algorithm) = nullptr;
};

std::unique_ptr<Gemm> Gemm::open(const std::string& path) {
  std::vector<std::string> names = {"libcublas.so.13", "libcublas.so.12", "libcublas.so"};
  if (!path.empty()) names = {path};
  auto library = std::make_unique<DynamicLibrary>(names);
  if (!library->is_open()) return nullptr;
  return std::unique_ptr<Gemm>(new Gemm(std::move(library)));
}

Gemm::Gemm(std::unique_ptr<DynamicLibrary> library)
    : library_(std::move(library)),
      functions_(std::make_unique<Functions>()),
      a_(random_matrix(1)),
      b_(random_matrix(2)),
      c_(a_.size_bytes()) {
  library_->find("cublasCreate_v2", functions_->create);
  library_->find("cublasDestroy_v2", functions_->destroy);
  library_->find("cublasSetStream_v2", functions_->set_stream);
  library_->find("cublasGemmEx", functions_->multiply);
  check(functions_->create(&handle_), "cublasCreate");
}

Gemm::~Gemm() {
  if (handle_ != nullptr) functions_->destroy(handle_);
}

void Gemm::enqueue(cudaStream_t stream) const {
  const float one = 1.0f;
  const float zero = 0.0f;
  check(functions_->set_stream(handle_, stream), "cublasSetStream");
  check(functions_->multiply(handle_, kTransposed, kNotTransposed, kSize, kSize, kSize, &one,
                             a_.data(), kBfloat16, kSize, b_.data(), kBfloat16, kSize, &zero,
                             c_.data(), kBfloat16, kSize, kComputeFloat32, kDefaultAlgorithm),
        "cublasGemmEx");
}

}  // namespace magi::cli
