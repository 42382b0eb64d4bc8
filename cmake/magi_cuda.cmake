# SPDX-License-Identifier: Apache-2.0
# CUDA is part of the build where nvcc is found; MAGI_HAS_CUDA tells.
include(CheckLanguage)
check_language(CUDA)
set(MAGI_HAS_CUDA OFF)
if(CMAKE_CUDA_COMPILER)
  set(CMAKE_CUDA_ARCHITECTURES 90a)
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  enable_language(CUDA)
  # CMake before 3.28 does not know nvcc's flag for C++20.
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  find_package(CUDAToolkit REQUIRED)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  set(MAGI_HAS_CUDA ON)
  # The wrappers of wgmma: headers of the build, as their lists of registers are long.
  set(MAGI_GENERATED_DIR "${PROJECT_BINARY_DIR}/generated")
  set(generate_wgmma "${PROJECT_SOURCE_DIR}/src/cuda/ptx/generate_wgmma.py")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${generate_wgmma}")
  execute_process(COMMAND "${Python3_EXECUTABLE}" "${generate_wgmma}" "${MAGI_GENERATED_DIR}/cuda/ptx"
                  COMMAND_ERROR_IS_FATAL ANY)
endif()

# magi_kernels(NAME SOURCES a.cu ... USES layer ... [WAIT_LIMIT_MS 200] [ALSO_FROM 80] [FROM 80])
# Device code: the build fails where ptxas spills registers or serialises matrix products. With a
# limit, waits of device code that last longer print what they wait for and end the launch
# (src/cuda/ptx/wait.cuh): the print needs a stack, so such code is not refused for it.
# ALSO_FROM: machine code for this compute capability, and PTX that drivers compile for later GPUs.
# FROM: PTX for this compute capability, and its machine code for that and for Hopper.
function(magi_kernels name)
  cmake_parse_arguments(ARG "" "WAIT_LIMIT_MS;ALSO_FROM;FROM" "SOURCES;USES" ${ARGN})
  if(MAGI_DEBUG_WAITS AND NOT ARG_WAIT_LIMIT_MS)
    set(ARG_WAIT_LIMIT_MS 10000)
  endif()
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                            $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>
                                            $<BUILD_INTERFACE:${MAGI_GENERATED_DIR}>)
  target_link_libraries(${name} PUBLIC ${ARG_USES} CUDA::cudart_static
                        PRIVATE $<BUILD_INTERFACE:magi_flags>)
  if(ARG_ALSO_FROM)
    set_target_properties(${name} PROPERTIES
                          CUDA_ARCHITECTURES "${CMAKE_CUDA_ARCHITECTURES}-real;${ARG_ALSO_FROM}")
  endif()
  if(ARG_FROM)
    set_target_properties(${name} PROPERTIES CUDA_ARCHITECTURES OFF)
    target_compile_options(${name} PRIVATE
      "$<$<COMPILE_LANGUAGE:CUDA>:-gencode=arch=compute_${ARG_FROM},code=[sm_${ARG_FROM},sm_90,compute_${ARG_FROM}]>")
  endif()
  if(MAGI_RACECHECK)
    target_compile_definitions(${name} PRIVATE MAGI_RACECHECK)
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-lineinfo>)
  endif()
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Xptxas=-v --expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra $<$<BOOL:${MAGI_WERROR}>:-Werror=all-warnings>>)
  if(ARG_WAIT_LIMIT_MS)
    target_compile_definitions(${name} PRIVATE MAGI_WAIT_LIMIT_MS=${ARG_WAIT_LIMIT_MS})
  else()
    set_target_properties(${name} PROPERTIES CUDA_COMPILER_LAUNCHER "${PROJECT_SOURCE_DIR}/cmake/check_ptxas.py")
  endif()
endfunction()
