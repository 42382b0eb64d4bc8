// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>

#include "base/random.hpp"

namespace magi::testing {

/// A range of `count` streams, of the seeds from 1 on. A failure in the loop over it tells the
/// seed, and ends the loop.
class RandomStreams {
 public:
  explicit RandomStreams(std::uint64_t count, const char* file = __builtin_FILE(),
                         int line = __builtin_LINE())
      : count_(count), file_(file), line_(line) {}

  struct End {};
  class Iterator {
   public:
    explicit Iterator(const RandomStreams& range) : range_(range) { ++*this; }
    Iterator& operator++() {
      ++seed_;
      trace_.reset();
      trace_.emplace(range_.file_, range_.line_, ::testing::Message() << "seed " << seed_);
      random_ = RandomStream(seed_);
      return *this;
    }
    RandomStream& operator*() { return random_; }
    bool operator!=(End /*end*/) const {
      return seed_ <= range_.count_ && !::testing::Test::HasFailure();
    }

   private:
    const RandomStreams& range_;
    std::uint64_t seed_ = 0;
    RandomStream random_{0};
    std::optional<::testing::ScopedTrace> trace_;
  };

  Iterator begin() const { return Iterator(*this); }
  End end() const { return {}; }

 private:
  std::uint64_t count_;
  const char* file_;
  int line_;
};

}  // namespace magi::testing
