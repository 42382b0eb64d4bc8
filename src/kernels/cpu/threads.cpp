// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/attention.hpp"
#include "kernels/cpu/run_items.hpp"

// The only caller of OpenMP's own functions. ThreadSanitizer cannot see into OpenMP's runtime and
// would report its barriers as races, so it gets one thread, as does a compiler without OpenMP.
#if __has_include(<omp.h>) && !defined(__SANITIZE_THREAD__)
#include <omp.h>

namespace magi::cpu {

std::int32_t num_threads_for(const Work& work) {
  constexpr double kFlopsPerThread = 4e6;
  const double wanted = std::min(static_cast<double>(work.num_items), work.flops / kFlopsPerThread);
  return static_cast<std::int32_t>(
      std::clamp(wanted, 1.0, static_cast<double>(omp_get_max_threads())));
}

std::size_t thread_index() { return static_cast<std::size_t>(omp_get_thread_num()); }

std::int32_t set_num_threads(std::int32_t num_threads) {
  const std::int32_t before = omp_get_max_threads();
  omp_set_num_threads(num_threads);
  return before;
}

}  // namespace magi::cpu
#else
namespace magi::cpu {

std::int32_t num_threads_for(const Work&) { return 1; }
std::size_t thread_index() { return 0; }
std::int32_t set_num_threads(std::int32_t) { return 1; }

}  // namespace magi::cpu
#endif
