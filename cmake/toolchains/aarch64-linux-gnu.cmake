# SPDX-License-Identifier: Apache-2.0
# Builds for Linux on 64-bit Arm with Debian's cross compiler (g++-aarch64-linux-gnu); programs of the
# build, tests among them, run under qemu-user. Debian's compiler looks into /usr/include too, so
# libraries of headers need no copy of their own; no library of this machine's is linked.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CUDA_HOST_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)
