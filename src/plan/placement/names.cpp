// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <string>
#include <utility>

#include "base/check.hpp"
#include "magi/placement.hpp"

namespace magi {
namespace {

using Entry = std::pair<PlacementAlgorithm, const char*>;

constexpr std::array<Entry, 14> kNames = {{
    {PlacementAlgorithm::Auto, "auto"},
    {PlacementAlgorithm::Thorough, "thorough"},
    {PlacementAlgorithm::Zigzag, "zigzag"},
    {PlacementAlgorithm::Affinity, "affinity"},
    {PlacementAlgorithm::LowerBound, "lower_bound"},
    {PlacementAlgorithm::DynamicProgramming, "dynamic_programming"},
    {PlacementAlgorithm::BinarySearch, "binary_search"},
    {PlacementAlgorithm::MinHeap, "min_heap"},
    {PlacementAlgorithm::ToppHeap, "topp_heap"},
    {PlacementAlgorithm::BacktrackingPruning, "backtracing_pruning"},
    {PlacementAlgorithm::RandomSelect, "random_select"},
    {PlacementAlgorithm::SequentialSelect, "sequential_select"},
    {PlacementAlgorithm::BatchToppHeap, "batch_topp_heap"},
    {PlacementAlgorithm::SortedSequentialSelect, "sorted_sequential_select"},
}};

std::string all_names() {
  std::string list;
  for (const Entry& entry : kNames) {
    if (!list.empty()) list += ", ";
    list += entry.second;
  }
  return list;
}

}  // namespace

const char* placement_name(PlacementAlgorithm algorithm) {
  for (const Entry& entry : kNames) {
    if (entry.first == algorithm) return entry.second;
  }
  throw invalid("placement algorithm", static_cast<int>(algorithm), "0 to 13");
}

PlacementAlgorithm placement_from_name(std::string_view name) {
  for (const Entry& entry : kNames) {
    if (name == entry.second) return entry.first;
  }
  throw invalid("placement algorithm", '"' + printable(name, 40) + '"', all_names());
}

}  // namespace magi
