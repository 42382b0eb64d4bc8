// SPDX-License-Identifier: Apache-2.0
#include "cli/verify/planted_faults.hpp"

namespace magi::testing {
namespace {

/// A fault of whoever expands the mask: the expansion and area are those of a changed mask.
std::function<void(Specimen&)> as_if(std::function<void(Mask&)> change) {
  return [change](Specimen& specimen) {
    Mask changed = specimen.verify_case.mask;
    change(changed);
    specimen.expanded = expand(changed);
    specimen.pairs = area(changed);
    specimen.coverage = check_coverage(changed);
  };
}

}  // namespace

std::vector<PlantedFault> mask_faults() {
  return {
      {"first query row left out", Checker::Expansion, StageMode::Rows,
       as_if([](Mask& mask) { ++mask.slices[3].q0; })},
      {"one query row too many", Checker::Expansion, StageMode::Rows,
       as_if([](Mask& mask) { ++mask.slices[3].q1; })},
      {"last key left out", Checker::Area, StageMode::Rows,
       as_if([](Mask& mask) { --mask.slices[3].k1; })},
      {"upper diagonal off by one", Checker::Area, StageMode::Rows,
       as_if([](Mask& mask) { ++mask.slices[0].d_max; })},
      {"lower diagonal off by one", Checker::Expansion, StageMode::Rows,
       as_if([](Mask& mask) { --mask.slices[1].d_min; })},
      {"both diagonals moved", Checker::Expansion, StageMode::Rows, as_if([](Mask& mask) {
         ++mask.slices[1].d_min;
         ++mask.slices[1].d_max;
       })},
      {"causal aligned top-left", Checker::Expansion, StageMode::Rows,
       as_if([](Mask& mask) { mask.slices[4].d_max = mask.slices[4].k0 - mask.slices[4].q0; })},
      {"inverse causal aligned bottom-right", Checker::Expansion, StageMode::Rows,
       as_if([](Mask& mask) { mask.slices[2].d_min = mask.slices[2].k1 - mask.slices[2].q1; })},
      {"missing slice", Checker::Area, StageMode::Rows,
       as_if([](Mask& mask) { mask.slices.pop_back(); })},
      {"doubled slice", Checker::Coverage, StageMode::Rows,
       as_if([](Mask& mask) { mask.slices.push_back(mask.slices[0]); })},
      {"queries and keys exchanged", Checker::Expansion, StageMode::Rows, as_if([](Mask& mask) {
         std::swap(mask.slices[3].q0, mask.slices[3].k0);
         std::swap(mask.slices[3].q1, mask.slices[3].k1);
       })},
      {"a pair seen twice counted once", Checker::Area, StageMode::Rows,
       [](Specimen& s) { s.pairs = s.coverage.visible_pairs; }},
      {"one pair of the expansion lost", Checker::Expansion, StageMode::Rows,
       [](Specimen& s) { --s.expanded[20 * 96 + 20]; }},
      {"a short expansion", Checker::Expansion, StageMode::Rows,
       [](Specimen& s) { s.expanded.pop_back(); }},
      {"overlap not noticed", Checker::Coverage, StageMode::Rows,
       [](Specimen& s) { s.coverage.first_overlap.reset(); }},
      {"an empty row not counted", Checker::Coverage, StageMode::Rows,
       [](Specimen& s) { --s.coverage.empty_rows; }},
      {"an unseen key counted as seen", Checker::Coverage, StageMode::Rows,
       [](Specimen& s) { --s.coverage.unseen_keys; }},
  };
}

}  // namespace magi::testing
