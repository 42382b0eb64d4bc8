// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/micro_kernels.hpp"

namespace magi::cpu {

constinit const MicroKernelSet kAvx2Kernels = {MicroKernelText<float, 32>::kTable,
                                               MicroKernelText<double, 32>::kTable};

}  // namespace magi::cpu
