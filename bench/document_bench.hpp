// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "magi/mask.hpp"

// What benches over packed documents have in common: recorded lengths, options, rows of results.
namespace magi::bench {

inline Mask packed_causal(const std::vector<std::int32_t>& lengths) {
  Mask mask;
  for (const std::int32_t length : lengths) {
    const Range rows{mask.rows_q, mask.rows_q + length};
    mask.slices.push_back(band_slice(rows, rows, MaskType::Causal));
    mask.rows_q = mask.rows_k = rows.end;
  }
  return mask;
}

struct Options {
  std::string out;  ///< empty: rows go to stdout
  std::string draws = "bench/data/document_draws.json";
};

inline Options parse_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    const bool is_known = name == "--out" || name == "--draws";
    if (!is_known || i + 1 == argc) {
      throw std::runtime_error("option " + name + "; allowed: --out FILE, --draws FILE");
    }
    (name == "--out" ? options.out : options.draws) = argv[i + 1];
  }
  return options;
}

/// Lists of document lengths by the sum of a list: draws.at("65536").at(0).
inline nlohmann::json read_draws(const Options& options) {
  std::ifstream file(options.draws);
  if (!file) throw std::runtime_error("cannot read " + options.draws);
  return nlohmann::json::parse(file).at("draws");
}

/// rows: objects {name, value, unit}.
inline void write_rows(const nlohmann::json& rows, const Options& options) {
  const std::string text = rows.dump(1) + "\n";
  if (options.out.empty()) {
    std::cout << text;
  } else if (!(std::ofstream(options.out) << text)) {
    throw std::runtime_error("cannot write " + options.out);
  }
}

/// The exit code of a bench: run(options) gives its rows.
template <typename Run>
int run_bench(const char* name, int argc, char** argv, const Run& run) {
  try {
    const Options options = parse_options(argc, argv);
    write_rows(run(options), options);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << name << ": " << error.what() << '\n';
    return 1;
  }
}

}  // namespace magi::bench
