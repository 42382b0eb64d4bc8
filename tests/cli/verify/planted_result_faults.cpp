// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "cli/verify/planted_faults.hpp"

namespace magi::testing {
namespace {

/// Results of attention that computes another case: what a kernel with that fault would give.
cli::CaseResults as_if(const Specimen& specimen, std::function<void(cli::VerifyCase&)> change) {
  cli::VerifyCase changed = specimen.verify_case;
  change(changed);
  return cli::reference_results(changed, specimen.data);
}

/// The specimen with every sink logit given twice.
cli::CaseResults with_doubled_sinks(const Specimen& specimen) {
  cli::VerifyCase changed = specimen.verify_case;
  cli::CaseData data = specimen.data;
  const auto row = static_cast<std::size_t>(changed.num_sinks * changed.config.num_heads_q);
  data.sink.clear();
  for (std::size_t at = 0; at < specimen.data.sink.size(); at += row) {
    for (int copy = 0; copy < 2; ++copy) {
      data.sink.insert(data.sink.end(),
                       specimen.data.sink.begin() + static_cast<std::ptrdiff_t>(at),
                       specimen.data.sink.begin() + static_cast<std::ptrdiff_t>(at + row));
    }
  }
  changed.num_sinks *= 2;
  return cli::reference_results(changed, data);
}

PlantedFault in_results(const char* name, std::function<void(Specimen&)> plant) {
  return {name, Checker::Results, StageMode::Rows, std::move(plant)};
}

PlantedFault in_bytes(const char* name, std::function<void(Specimen&)> plant) {
  return {name, Checker::Bytes, StageMode::Heads, std::move(plant)};
}

void drop_last_slice(cli::VerifyCase& c) { c.mask.slices.pop_back(); }

std::vector<PlantedFault> forward_faults() {
  return {
      in_results("keys of a stage never merged",
                 [](Specimen& s) {
                   const cli::CaseResults part = as_if(s, drop_last_slice);
                   s.results.out = part.out;
                   s.results.lse = part.lse;
                 }),
      in_results("out merged, lse not",
                 [](Specimen& s) { s.results.lse = as_if(s, drop_last_slice).lse; }),
      in_results("sink applied twice",
                 [](Specimen& s) { s.results.out = with_doubled_sinks(s).out; }),
      in_results("sink forgotten",
                 [](Specimen& s) {
                   s.results.lse = as_if(s, [](cli::VerifyCase& c) { c.num_sinks = 0; }).lse;
                 }),
      in_results("softcap forgotten",
                 [](Specimen& s) {
                   s.results.out = as_if(s, [](cli::VerifyCase& c) { c.params.softcap = 0; }).out;
                 }),
      in_results("softmax scale forgotten",
                 [](Specimen& s) {
                   s.results.lse =
                       as_if(s, [](cli::VerifyCase& c) { c.params.softmax_scale = 0; }).lse;
                 }),
      in_results("max_logits of one rank only",
                 [](Specimen& s) { s.results.max_logits[3] -= 1e-6; }),
      in_results("two rows of out exchanged",
                 [](Specimen& s) {
                   std::swap_ranges(s.results.out.begin(), s.results.out.begin() + 48,
                                    s.results.out.begin() + 48);
                 }),
      in_results("two heads of out exchanged",
                 [](Specimen& s) {
                   std::swap_ranges(s.results.out.begin(), s.results.out.begin() + 12,
                                    s.results.out.begin() + 12);
                 }),
      in_results("not a number",
                 [](Specimen& s) { s.results.out[5] = std::numeric_limits<double>::quiet_NaN(); }),
      in_results("lse of a row at infinity",
                 [](Specimen& s) { s.results.lse[0] = -std::numeric_limits<double>::infinity(); }),
      in_results("one element off by a billionth", [](Specimen& s) { s.results.out[700] += 1e-9; }),
      in_results("an array cut short", [](Specimen& s) { s.results.lse.pop_back(); }),
  };
}

std::vector<PlantedFault> backward_faults() {
  return {
      in_results("partial dK of a stage lost",
                 [](Specimen& s) { s.results.dk = as_if(s, drop_last_slice).dk; }),
      in_results("partial dV added twice",
                 [](Specimen& s) {
                   const cli::CaseResults part = as_if(s, drop_last_slice);
                   for (std::size_t i = 0; i < part.dv.size(); ++i) {
                     s.results.dv[i] += s.results.dv[i] - part.dv[i];
                   }
                 }),
      in_results("dV moved by a row",
                 [](Specimen& s) {
                   std::rotate(s.results.dv.begin(), s.results.dv.begin() + 24, s.results.dv.end());
                 }),
      in_results("gradient through lse forgotten",
                 [](Specimen& s) {
                   cli::CaseData data = s.data;
                   data.dlse.clear();
                   s.results.dq = cli::reference_results(s.verify_case, data).dq;
                 }),
      in_results("softcap forgotten in backward",
                 [](Specimen& s) {
                   s.results.dk = as_if(s, [](cli::VerifyCase& c) { c.params.softcap = 0; }).dk;
                 }),
      in_results("dsink of one rank's rows lost",
                 [](Specimen& s) {
                   std::fill(s.results.dsink.begin(), s.results.dsink.begin() + 64, 0.0);
                 }),
      in_results("gradients kept from an earlier call",
                 [](Specimen& s) {
                   for (double& value : s.results.dq) value *= 2;
                 }),
  };
}

std::vector<PlantedFault> byte_faults() {
  return {
      in_bytes("one element more than planned",
               [](Specimen& s) { s.results.forward_bytes[1] += 8; }),
      in_bytes("bytes counted for the wrong peer",
               [](Specimen& s) {
                 s.results.forward_bytes[1] += 800;
                 s.results.forward_bytes[2] -= 800;
               }),
      in_bytes("reduce sent twice",
               [](Specimen& s) {
                 for (std::int64_t& bytes : s.results.backward_bytes) bytes += bytes / 2;
               }),
      in_bytes("backward that casts nothing",
               [](Specimen& s) {
                 for (std::size_t i = 0; i < s.results.backward_bytes.size(); ++i) {
                   s.results.backward_bytes[i] -= s.results.forward_bytes[i];
                 }
               }),
      in_bytes("bytes sent to oneself", [](Specimen& s) { s.results.forward_bytes[0] = 8; }),
  };
}

}  // namespace

std::vector<PlantedFault> result_faults() {
  std::vector<PlantedFault> faults = forward_faults();
  for (auto* more : {&backward_faults, &byte_faults}) {
    const std::vector<PlantedFault> part = (*more)();
    faults.insert(faults.end(), part.begin(), part.end());
  }
  return faults;
}

}  // namespace magi::testing
