// SPDX-License-Identifier: Apache-2.0
#include "cli/verify/planted_faults.hpp"

namespace magi::testing {

Specimen make_specimen(StageMode mode) {
  Specimen specimen;
  cli::VerifyCase& c = specimen.verify_case;
  c.mask = {.rows_q = 96,
            .rows_k = 96,
            .slices = {band_slice({0, 40}, {0, 40}, MaskType::Causal),
                       band_slice({40, 64}, {30, 70}, MaskType::BidirectionalCausal),
                       band_slice({60, 80}, {10, 40}, MaskType::InverseCausal),
                       band_slice({50, 90}, {0, 20}, MaskType::Full),
                       band_slice({70, 90}, {15, 60}, MaskType::Causal)}};
  c.config = {.num_ranks = 3,
              .num_heads_q = 4,
              .num_heads_kv = 2,
              .head_dim_qk = 8,
              .head_dim_v = 12,
              .element_bytes = 8};
  c.config.placement = {.algorithm = PlacementAlgorithm::MinHeap, .chunk_size = 8};
  c.config.overlap_degree = 2;
  c.config.stage_mode = mode;
  c.config.min_stage_rows = 4;
  c.params = {.softmax_scale = 0.5, .softcap = 3.0, .sink_layout = SinkLayout::RowSinkHead};
  c.num_sinks = 2;
  c.has_dlse = true;
  c.data_seed = 7;
  specimen.expanded = expand(c.mask);
  specimen.pairs = area(c.mask);
  specimen.coverage = check_coverage(c.mask);
  specimen.plan = make_plan(c.mask, c.config);
  specimen.data = cli::make_data(c);
  specimen.results = cli::run_case(c, specimen.plan, specimen.data);
  specimen.truth = cli::reference_results(c, specimen.data);
  return specimen;
}

cli::Findings findings_of(Checker checker, const Specimen& specimen) {
  const Mask& mask = specimen.verify_case.mask;
  switch (checker) {
    case Checker::Expansion:
      return cli::check_expansion(mask, specimen.expanded);
    case Checker::Area:
      return cli::check_area(mask, specimen.pairs);
    case Checker::Coverage:
      return cli::check_coverage_counts(mask, specimen.coverage);
    case Checker::Plan:
      return check_plan(specimen.plan);
    case Checker::Bytes:
      return cli::check_bytes(specimen.plan, specimen.results);
    case Checker::Results:
      return cli::check_results(specimen.verify_case, specimen.data, specimen.results,
                                specimen.truth);
  }
  return {};
}

}  // namespace magi::testing
