// SPDX-License-Identifier: Apache-2.0
#include "common/prefix_tree.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

namespace magi::cli {
namespace {

constexpr std::uint32_t kSeed = 15;
constexpr std::int32_t kDepth = 6;
constexpr std::int32_t kLeastRows = 64;

/// The state of a Mersenne Twister that is seeded by an array of one number (Matsumoto, Nishimura:
/// init_by_array, 2002), which std::seed_seq does not give.
struct ArraySeed {
  using result_type = std::uint_least32_t;
  std::uint32_t key = 0;

  template <typename Iterator>
  void generate(Iterator begin, Iterator end) const {
    const auto mixed = [&](std::ptrdiff_t i) { return begin[i] ^ (begin[i] >> 30); };
    const std::ptrdiff_t count = end - begin;
    begin[0] = 19650218U;
    for (std::ptrdiff_t i = 1; i < count; ++i) {
      begin[i] =
          1812433253U * static_cast<std::uint32_t>(mixed(i - 1)) + static_cast<std::uint32_t>(i);
    }
    std::ptrdiff_t i = 1;
    const auto step = [&] {
      if (++i < count) return;
      begin[0] = begin[count - 1];
      i = 1;
    };
    for (std::ptrdiff_t n = 0; n < count; ++n) {
      begin[i] = (begin[i] ^ (static_cast<std::uint32_t>(mixed(i - 1)) * 1664525U)) + key;
      step();
    }
    for (std::ptrdiff_t n = 1; n < count; ++n) {
      begin[i] = (begin[i] ^ (static_cast<std::uint32_t>(mixed(i - 1)) * 1566083941U)) -
                 static_cast<std::uint32_t>(i);
      step();
    }
    begin[0] = 0x80000000U;
  }
};

/// The numbers of Python's random.Random(seed).
class PythonRandom {
 public:
  explicit PythonRandom(std::uint32_t seed) {
    ArraySeed state{seed};
    engine_.seed(state);
  }
  /// A number in [0, 1).
  double random() {
    const double high = static_cast<double>(engine_() >> 5);
    const double low = static_cast<double>(engine_() >> 6);
    return (high * 0x1p26 + low) * 0x1p-53;
  }
  /// A number in [low, high], both inclusive.
  std::int32_t between(std::int32_t low, std::int32_t high) {
    const auto count = static_cast<std::uint32_t>(high - low + 1);
    const auto bits = static_cast<int>(std::bit_width(count));
    std::uint32_t drawn = count;
    while (drawn >= count) drawn = static_cast<std::uint32_t>(engine_()) >> (32 - bits);
    return low + static_cast<std::int32_t>(drawn);
  }

 private:
  std::mt19937 engine_;
};

class Trees {
 public:
  explicit Trees(std::int32_t rows) : rows_(rows), left_(rows) {}

  std::vector<PrefixTreeNode> take() {
    while (left_ > 0) grow(-1, 0);
    return std::move(nodes_);
  }

 private:
  void grow(std::int32_t parent, std::int32_t depth) {
    const double most = std::max(kLeastRows, (rows_ / 8) >> depth);
    const double drawn = kLeastRows * std::pow(most / kLeastRows, random_.random());
    const auto rows = std::min(left_, static_cast<std::int32_t>(std::nearbyint(drawn)));
    if (rows == 0) return;
    left_ -= rows;
    nodes_.push_back({.parent = parent, .rows = rows});
    const auto own = static_cast<std::int32_t>(nodes_.size()) - 1;
    if (depth + 1 == kDepth) return;
    for (std::int32_t children = random_.between(2, 4); children > 0; --children) {
      grow(own, depth + 1);
    }
  }

  std::int32_t rows_;
  std::int32_t left_;
  PythonRandom random_{kSeed};
  std::vector<PrefixTreeNode> nodes_;
};

}  // namespace

std::vector<PrefixTreeNode> bench_prefix_tree(std::int32_t rows) { return Trees(rows).take(); }

}  // namespace magi::cli
