// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/host/schedule_policy.hpp"

#include <sstream>

namespace magi {
namespace {

std::ostream& operator<<(std::ostream& out, const Ratio& ratio) {
  return out << ratio.numerator << '/' << ratio.denominator;
}

}  // namespace

std::string describe(const SchedulePolicy& policy) {
  std::ostringstream out;
  const auto line = [&out](const char* name, const auto& value, const char* unit) {
    out << name << " = " << value << ' ' << unit << '\n';
  };
  line("uneven_cost", policy.uneven_cost, "of the list's cost");
  line("uneven_apart_cost", policy.uneven_apart_cost, "of the list's cost");
  line("even_head_dims", policy.even_head_dims, "elements");
  line("short_list", policy.short_list, "k tiles x kv heads per CTA");
  line("long_list", policy.long_list, "k tiles x kv heads per CTA");
  line("alike_tiles", policy.alike_tiles, "of the mean cost of k tiles");
  line("narrow_tile", policy.narrow_tile, "of the q tiles");
  line("global_tiles", policy.global_tiles, "of the k tiles");
  line("global_length", policy.global_length, "of the shortest global k tile");
  line("few_additions", policy.few_additions, "additions per dQ sum");
  line("tiny_list", policy.tiny_list, "steps per kv head");
  line("uneven_item", policy.uneven_item, "of the steps in the cache");
  line("uneven_tail", policy.uneven_tail, "steps per item");
  line("least_item", policy.least_item, "steps per item");
  line("least_item_heads", policy.least_item_heads, "query heads per item");
  line("cache_misses", policy.cache_misses, "of an item's time");
  line("tail_step", policy.tail_step, "of a step");
  line("wide_section_step", policy.wide_section_step, "of a step");
  line("packing_doubling", policy.packing_doubling, "of the list's time");
  line("in_turn_packing", policy.in_turn_packing, "of the list's time");
  line("chain_distance", policy.chain_distance, "steps");
  line("sharing_ctas", policy.sharing_ctas, "CTAs per kv head");
  line("chain_share", policy.chain_share, "of an item's steps");
  line("even_chain_distance", policy.even_chain_distance, "steps");
  line("nested_rows", policy.nested_rows, "of the rows that k tiles span");
  line("split_chains", policy.split_chains, "kv heads");
  line("block_rounds", policy.block_rounds, "items per CTA");
  line("least_gain", policy.least_gain, "of the list's time");
  line("global_run", policy.global_run, "q tiles");
  line("conversion_distance", policy.conversion_distance, "steps per conversion");
  return out.str();
}

}  // namespace magi
