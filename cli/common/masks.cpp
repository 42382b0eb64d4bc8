// SPDX-License-Identifier: Apache-2.0
#include "common/masks.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <numeric>

#include "base/check.hpp"
#include "common/prefix_tree.hpp"
#include "magi/mask_builders.hpp"

namespace magi::cli {
namespace {

constexpr std::int32_t kWindow = 1024;
constexpr std::int32_t kBlock = 2048;
constexpr std::int32_t kVideoBlock = 5120;

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

namespace {

/// Keys of a window and queries of a block.
struct Steps {
  std::int32_t window = kWindow;
  std::int32_t block = kBlock;
};

Mask documents_mask(const std::vector<std::int32_t>& sums, MaskType type) {
  Mask mask{sums.back(), sums.back(), {}};
  for (std::size_t i = 0; i + 1 < sums.size(); ++i) {
    const Range range{sums[i], sums[i + 1]};
    mask.slices.push_back(band_slice(range, range, type));
  }
  return mask;
}

/// `sums`: gives the prefix sums of the documents.
Mask named_mask(std::string_view name, std::int32_t rows, const Steps& steps,
                const std::function<std::vector<std::int32_t>()>& sums) {
  const Range all{0, rows};
  if (name == "full") return {rows, rows, {band_slice(all, all, MaskType::Full)}};
  if (name == "causal") return {rows, rows, {band_slice(all, all, MaskType::Causal)}};
  if (name == "window") {
    return mask_from_window(all, all, {.left = steps.window - 1, .right = 0}, rows, rows);
  }
  if (name == "varlen_full") return documents_mask(sums(), MaskType::Full);
  if (name == "varlen_causal") return documents_mask(sums(), MaskType::Causal);
  if (name == "block_causal") return mask_block_causal(sums(), steps.block);
  throw invalid("mask", name, "the names of the bench's masks");
}

/// Prefix sums of documents of any length that is recorded or below.
std::vector<std::int32_t> scaled_sums(std::int32_t rows) {
  const std::int32_t least = recorded_documents().begin()->first;
  if (rows >= least) return prefix_sums(bench_documents(rows));
  std::vector<std::int32_t> sums = prefix_sums(bench_documents(least));
  for (std::int32_t& sum : sums) {
    sum = static_cast<std::int32_t>(std::int64_t{sum} * rows / least);
  }
  sums.erase(std::unique(sums.begin(), sums.end()), sums.end());
  return sums;
}

}  // namespace

Mask bench_mask(std::string_view name, std::int32_t rows) {
  return named_mask(name, rows, {}, [&] { return prefix_sums(bench_documents(rows)); });
}

const std::vector<std::string>& dist_mask_names() {
  static const std::vector<std::string> names = {
      "full",        "causal",      "varlen_full", "varlen_causal", "window", "varlen_block_causal",
      "prefix_tree", "video_blocks"};
  return names;
}

Mask dist_mask(std::string_view name, std::int32_t rows) {
  if (name == "prefix_tree") return mask_prefix_tree(bench_prefix_tree(rows));
  if (name == "video_blocks") {
    const std::array videos = {0, static_cast<std::int32_t>(std::int64_t{rows} * 5 / 8), rows};
    return mask_block_causal(videos, std::clamp(videos[1] / 2, 1, kVideoBlock));
  }
  const std::int32_t least = recorded_documents().begin()->first;
  const auto scaled = [&](std::int64_t count) {
    return static_cast<std::int32_t>(
        std::max<std::int64_t>(1, count * std::min(rows, least) / least));
  };
  return named_mask(name == "varlen_block_causal" ? "block_causal" : name, rows,
                    {.window = scaled(kWindow), .block = scaled(kBlock)},
                    [&] { return scaled_sums(rows); });
}

}  // namespace magi::cli
