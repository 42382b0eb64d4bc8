// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/text_stream.hpp"
#include "magi/plan.hpp"
#include "plan/value/spaces.hpp"

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
    std::ostringstream text = text_stream();
    (text << ... << parts);
    sentences_.push_back(text.str());
  }
  std::vector<std::string> take() { return std::move(sentences_); }

 private:
  std::vector<std::string> sentences_;
};

constexpr const char* pass_name(bool is_backward) { return is_backward ? "backward" : "forward"; }

/// Whatever would make reading the plan's tables go out of bounds, tables of sizes that do not fit
/// together, and passes that the ranks cannot run together.
std::vector<std::string> check_structure(const Plan& plan);

}  // namespace magi::planner
