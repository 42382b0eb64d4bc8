// SPDX-License-Identifier: Apache-2.0
#include "cuda/driver.hpp"

namespace magi {

void* driver_function(const char* name, unsigned version) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result{};
  cuda_check(cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &result),
             "cudaGetDriverEntryPointByVersion");
  if (function == nullptr || result != cudaDriverEntryPointSuccess) {
    throw CudaError(std::string("the driver has no ") + name, cudaErrorNotSupported);
  }
  return function;
}

void driver_check(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  using GetName = decltype(&cuGetErrorName);
  static const auto get_name = reinterpret_cast<GetName>(driver_function("cuGetErrorName", 6000));
  const char* text = nullptr;
  get_name(result, &text);
  throw CudaError(std::string(call) + " failed: " + (text != nullptr ? text : "unknown error"),
                  static_cast<int>(result));
}

}  // namespace magi
