# SPDX-License-Identifier: Apache-2.0
# CUDA is part of the build where nvcc is found; MAGI_HAS_CUDA tells.
include(CheckLanguage)
check_language(CUDA)
set(MAGI_HAS_CUDA OFF)
if(CMAKE_CUDA_COMPILER)
  set(CMAKE_CUDA_ARCHITECTURES 90a)
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
  set(MAGI_HAS_CUDA ON)
endif()
