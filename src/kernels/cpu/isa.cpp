// SPDX-License-Identifier: Apache-2.0

#include "base/check.hpp"
#include "kernels/cpu/micro_kernels.hpp"

namespace magi::cpu {
namespace {

const MicroKernelSet& kernel_set(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::Best && isa_available(Isa::Avx2)) return kAvx2Kernels;
  if (isa == Isa::Avx2 && isa_available(isa)) return kAvx2Kernels;
#endif
  if (isa == Isa::Avx2) throw invalid("isa", "avx2", "one that this machine runs");
  return kPortableKernels;
}

}  // namespace

bool isa_available(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::Avx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
  return isa != Isa::Avx2;
}

template <>
const MicroKernels<float>& micro_kernels<float>(Isa isa) {
  return kernel_set(isa).float32;
}

template <>
const MicroKernels<double>& micro_kernels<double>(Isa isa) {
  return kernel_set(isa).float64;
}

}  // namespace magi::cpu
