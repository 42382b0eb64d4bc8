// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace magi::testing {

/// What a run of the command left.
struct Outcome {
  int code = -1;  ///< exit code, or 128 + signal
  std::string out;
  std::string err;
};

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Runs `magi <arguments>` in a shell; `variables` ("NAME=value ...") are set for it, `input` is
/// its standard input.
Outcome run_magi(const std::string& arguments, const std::string& variables = "",
                 const std::string& input = "");

}  // namespace magi::testing
