// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/micro_kernels.hpp"

namespace magi::cpu {

constinit const MicroKernelSet kPortableKernels = {MicroKernelText<float, 16>::kTable,
                                                   MicroKernelText<double, 16>::kTable};

}  // namespace magi::cpu
