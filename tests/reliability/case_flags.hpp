// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>

#include "base/random.hpp"

// Long counted runs (bench/reliability): cases are numbered, and each has a stream of its own, so
// that a run may be cut in parts and one case be run alone.
namespace magi::testing {

struct CaseFlags {
  std::uint64_t seed = 1;
  std::int64_t first = 0;
  std::int64_t cases = 0;
};

/// --seed S, --first N and --cases N; ends the program where another argument is given.
inline CaseFlags read_case_flags(int argc, char** argv, std::int64_t default_cases) {
  CaseFlags flags{.cases = default_cases};
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    const bool is_known = name == "--seed" || name == "--first" || name == "--cases";
    if (!is_known || i + 1 == argc) {
      std::cerr << "usage: " << argv[0] << " [--seed S] [--first N] [--cases N]\n";
      std::exit(2);
    }
    const std::int64_t value = std::stoll(argv[i + 1]);
    if (name == "--seed") flags.seed = static_cast<std::uint64_t>(value);
    if (name == "--first") flags.first = value;
    if (name == "--cases") flags.cases = value;
  }
  return flags;
}

inline RandomStream stream_of(std::uint64_t seed, std::int64_t index) {
  RandomStream streams(seed ^ (0x9e3779b97f4a7c15u * (static_cast<std::uint64_t>(index) + 1)));
  return RandomStream(streams());
}

}  // namespace magi::testing
