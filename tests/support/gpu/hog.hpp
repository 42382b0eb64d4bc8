// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/memory.hpp"
#include "cuda/stream.hpp"

namespace magi::test {

/// Keeps `num_ctas` multiprocessors busy, and the memory with them, from its construction to its
/// end: each CTA takes nearly all shared memory of one and reads a buffer in circles. Gives up
/// after a minute.
class Hog {
 public:
  explicit Hog(int num_ctas);
  ~Hog();
  Hog(const Hog&) = delete;
  Hog& operator=(const Hog&) = delete;

 private:
  int* is_over_ = nullptr;  ///< host memory that the device sees
  DeviceBuffer buffer_;
  Stream stream_;
};

}  // namespace magi::test
