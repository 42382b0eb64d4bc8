// SPDX-License-Identifier: Apache-2.0
#include <stdexcept>

#include "bench/kernel_bench.hpp"

namespace magi::cli {

KernelBenchReport run_kernel_bench(const KernelBenchOptions& /*options*/,
                                   const std::function<void(const std::string&)>& /*tell*/) {
  throw std::runtime_error("this magi is built without CUDA, so there is no kernel to time");
}

}  // namespace magi::cli
