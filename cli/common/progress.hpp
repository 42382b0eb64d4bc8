// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <iostream>

namespace magi::cli {

/// Tells on standard error how far work is that takes over two seconds, every two seconds.
class Progress {
 public:
  Progress(const char* done, std::size_t total) : done_(done), total_(total) {}

  void advance() {
    ++count_;
    const auto now = std::chrono::steady_clock::now();
    if (now - last_time_ < std::chrono::seconds(2)) return;
    last_time_ = now;
    std::cerr << done_ << ' ' << count_ << " of " << total_ << std::endl;
  }

 private:
  const char* done_;
  std::size_t total_;
  std::size_t count_ = 0;
  std::chrono::steady_clock::time_point last_time_ = std::chrono::steady_clock::now();
};

}  // namespace magi::cli
