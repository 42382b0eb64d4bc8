// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "base/check.hpp"
#include "magi/mask_builders.hpp"
#include "mask/form_masks.hpp"

namespace magi::forms {
namespace {

/// Samples that agree up to `begin`, where the nodes of what they share end, and have one token
/// more in common.
struct Group {
  std::vector<std::size_t> samples;
  std::size_t begin = 0;
  std::int32_t parent = -1;
};

/// The samples of a group that are longer than `begin`, by their token there: in the order in which
/// tokens first come, the last first, as a stack wants them.
std::vector<Group> by_token(const Value& samples, const Group& group, std::size_t begin,
                            std::int32_t parent) {
  std::vector<std::size_t> left;
  for (const std::size_t sample : group.samples) {
    if (samples.row(sample).size() > begin) left.push_back(sample);
  }
  const auto token = [&](std::size_t sample) { return samples.row(sample)[begin]; };
  std::vector<std::size_t> order = left;
  std::ranges::stable_sort(order, {}, token);
  std::vector<Group> groups;
  for (const std::size_t sample : order) {
    if (groups.empty() || token(groups.back().samples[0]) != token(sample)) {
      groups.push_back({.samples = {}, .begin = begin, .parent = parent});
    }
    groups.back().samples.push_back(sample);
  }
  std::ranges::sort(groups, std::ranges::greater{},
                    [](const Group& one) { return one.samples[0]; });
  return groups;
}

/// The number of tokens that all samples of a group share.
std::size_t common(const Value& samples, const Group& group) {
  std::span<const std::int32_t> shared = samples.row(group.samples[0]);
  for (const std::size_t sample : group.samples) {
    const auto other = samples.row(sample);
    const auto end = std::ranges::mismatch(shared, other).in1;
    shared = shared.first(static_cast<std::size_t>(end - shared.begin()));
  }
  return shared.size();
}

}  // namespace

Mask of_tree(Values values) {
  const std::vector<std::int32_t>& parents = values[0].numbers;
  const std::vector<std::int32_t>& lengths = values[1].numbers;
  check_count("lengths", lengths.size(), parents.size(), "as parents");
  std::vector<PrefixTreeNode> nodes;
  std::int64_t rows = 0;
  for (std::size_t i = 0; i < parents.size(); ++i) {
    if (parents[i] >= static_cast<std::int32_t>(i)) {
      throw invalid(element_name("parents", i), parents[i], "-1, or the index of a node before it");
    }
    rows += lengths[i];
    if (rows > kMaxRows) {
      throw invalid("sum of lengths", rows, "at most " + std::to_string(kMaxRows));
    }
    nodes.push_back({.parent = parents[i], .rows = lengths[i]});
  }
  return compacted(mask_prefix_tree(nodes));
}

Mask of_token_ids(Values values) {
  const Value& samples = values[0];
  Group all;
  for (std::size_t i = 0; i < samples.num_rows(); ++i) {
    if (samples.row(i).empty())
      throw invalid(element_name("samples", i), "empty", "one token or more");
    all.samples.push_back(i);
  }
  std::vector<PrefixTreeNode> nodes;
  // A node's own groups come before its siblings, so that branches lie together.
  std::vector<Group> groups = by_token(samples, all, 0, -1);
  while (!groups.empty()) {
    const Group group = std::move(groups.back());
    groups.pop_back();
    const std::size_t end = common(samples, group);
    const auto node = static_cast<std::int32_t>(nodes.size());
    nodes.push_back({.parent = group.parent, .rows = static_cast<std::int32_t>(end - group.begin)});
    for (Group& next : by_token(samples, group, end, node)) groups.push_back(std::move(next));
  }
  return compacted(mask_prefix_tree(nodes));
}

}  // namespace magi::forms
