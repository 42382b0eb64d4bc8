// SPDX-License-Identifier: Apache-2.0
#include "bench/masks.hpp"

#include <map>
#include <numeric>

#include "base/check.hpp"
#include "magi/mask_builders.hpp"

namespace magi::cli {
namespace {

constexpr std::int32_t kWindow = 1024;
constexpr std::int32_t kBlock = 2048;

const std::map<std::int32_t, std::vector<std::int32_t>>& recorded_documents() {
  static const std::map<std::int32_t, std::vector<std::int32_t>> documents = {
#include "document_draw.inc"
  };
  return documents;
}

std::vector<std::int32_t> prefix_sums(const std::vector<std::int32_t>& lengths) {
  std::vector<std::int32_t> sums = {0};
  for (const std::int32_t length : lengths) sums.push_back(sums.back() + length);
  return sums;
}

}  // namespace

const std::vector<std::string>& bench_mask_names() {
  static const std::vector<std::string> names = {"full",          "causal", "varlen_full",
                                                 "varlen_causal", "window", "block_causal"};
  return names;
}

std::vector<std::int32_t> bench_lengths() {
  std::vector<std::int32_t> lengths = {recorded_documents().begin()->first / 2};
  for (const auto& [rows, documents] : recorded_documents()) lengths.push_back(rows);
  return lengths;
}

std::vector<std::int32_t> bench_documents(std::int32_t rows) {
  const auto& recorded = recorded_documents();
  const auto found = recorded.find(rows);
  if (found != recorded.end()) return found->second;
  if (rows * 2 != recorded.begin()->first) {
    throw invalid("rows", rows, "lengths with recorded documents");
  }
  std::vector<std::int32_t> halves;
  for (const std::int32_t length : recorded.begin()->second) halves.push_back(length / 2);
  return halves;
}

Mask bench_mask(std::string_view name, std::int32_t rows) {
  if (name == "full") return {rows, rows, {band_slice({0, rows}, {0, rows}, MaskType::Full)}};
  if (name == "causal") return {rows, rows, {band_slice({0, rows}, {0, rows}, MaskType::Causal)}};
  if (name == "window") {
    return mask_from_window({0, rows}, {0, rows}, {.left = kWindow - 1, .right = 0}, rows, rows);
  }
  const std::vector<std::int32_t> sums = prefix_sums(bench_documents(rows));
  if (name == "block_causal") return mask_block_causal(sums, kBlock);
  if (name != "varlen_full" && name != "varlen_causal") {
    throw invalid("mask", name, "the names of the bench's masks");
  }
  const MaskType type = name == "varlen_causal" ? MaskType::Causal : MaskType::Full;
  Mask mask{rows, rows, {}};
  for (std::size_t i = 0; i + 1 < sums.size(); ++i) {
    const Range range{sums[i], sums[i + 1]};
    mask.slices.push_back(band_slice(range, range, type));
  }
  return mask;
}

}  // namespace magi::cli
