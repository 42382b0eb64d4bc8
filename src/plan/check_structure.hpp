// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "magi/plan.hpp"

namespace magi::planner {

/// Sentences about what is wrong; the first ones suffice.
class Problems {
 public:
  static constexpr std::size_t kMost = 32;

  bool is_full() const { return sentences_.size() >= kMost; }
  bool empty() const { return sentences_.empty(); }
  template <typename... Parts>
  void add(const Parts&... parts) {
    if (is_full()) return;
    std::ostringstream text;
    (text << ... << parts);
    sentences_.push_back(text.str());
  }
  std::vector<std::string> take() { return std::move(sentences_); }

 private:
  std::vector<std::string> sentences_;
};

/// Whatever would make reading the plan's tables go out of bounds, or tables of sizes that do not
/// fit together. Linear in the plan.
std::vector<std::string> check_structure(const Plan& plan);

}  // namespace magi::planner
