// SPDX-License-Identifier: Apache-2.0
#include "demo/report.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "demo/embedding.hpp"
#include "draw/numbers.hpp"

namespace magi::cli {
namespace {

using draw::bytes_text;
using draw::decimal;
using draw::grouped;
using draw::percent_text;
using draw::seconds_text;

std::string scientific(double value) {
  std::ostringstream text;
  text.precision(2);
  text << value;
  return text.str();
}

std::string joined(const std::vector<std::string>& parts, const char* separator) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : separator) + part;
  return text;
}

std::string sources_text(const Corpus& corpus) {
  constexpr std::size_t kMostNames = 6;
  const std::size_t shown = std::min(corpus.sources.size(), kMostNames);
  std::string text = joined(
      {corpus.sources.begin(), corpus.sources.begin() + static_cast<std::ptrdiff_t>(shown)}, ", ");
  if (corpus.sources.size() > shown) {
    text += " and " + std::to_string(corpus.sources.size() - shown) + " more";
  }
  return text;
}

void write_balance(std::ostream& text, const Plan& plan) {
  const double pairs = static_cast<double>(area(plan.mask));
  text << "  balance   busiest rank " << decimal(plan.report.balance, 3) << " x the mean (";
  const std::size_t shown = std::min<std::size_t>(plan.report.rank_area.size(), 8);
  for (std::size_t r = 0; r < shown; ++r) {
    text << (r == 0 ? "" : ", ")
         << percent_text(static_cast<double>(plan.report.rank_area[r]), pairs);
  }
  text << (shown < plan.report.rank_area.size() ? ", ...)\n" : ")\n");
}

void write_bytes(std::ostream& text, const Plan& plan, const SceneCheck& check) {
  const auto ring = static_cast<double>(plan.report.ring_bytes);
  text << "  moved     forward " << grouped(check.forward_bytes) << " bytes ("
       << bytes_text(check.forward_bytes) << "), backward " << grouped(check.backward_bytes)
       << "; ";
  if (check.byte_fault.empty()) {
    text << "every pair of ranks as planned\n";
  } else {
    text << "NOT AS PLANNED: " << check.byte_fault << '\n';
  }
  text << "            a ring or all-gather moves " << grouped(plan.report.ring_bytes)
       << " forward: this is " << percent_text(static_cast<double>(check.forward_bytes), ring)
       << " of it; proven lower bound " << grouped(check.bound_bytes) << '\n';
}

void write_scene(std::ostream& text, const DemoReport& report, std::size_t index) {
  const Scene& scene = report.scenes[index];
  const SceneCheck& check = report.checks[index];
  const Plan& plan = *scene.plan;
  const std::int64_t pairs = area(plan.mask);
  const double dense = static_cast<double>(plan.mask.rows_q) * plan.mask.rows_k;
  text << '\n'
       << scene.name << ": " << grouped(static_cast<std::int64_t>(plan.mask.slices.size()))
       << (plan.mask.slices.size() == 1 ? " slice, " : " slices, ") << grouped(pairs) << " pairs ("
       << percent_text(static_cast<double>(pairs), dense) << " of dense)\n";
  write_balance(text, plan);
  write_bytes(text, plan, check);
  text << "  error    ";
  for (const TensorCheck& tensor : check.tensors) {
    text << ' ' << tensor.name << ' ' << scientific(tensor.error)
         << (tensor.holds ? " <= " : " EXCEEDS ") << scientific(tensor.allowed)
         << (&tensor == &check.tensors.back() ? "\n" : ",");
  }
  text << "  time      forward " << seconds_text(check.forward_seconds) << ", backward "
       << seconds_text(check.backward_seconds) << "; dense float64 check "
       << seconds_text(check.reference_seconds) << '\n';
  text << "  pictures  " << joined(report.pictures[index], "\n            ") << '\n';
}

nlohmann::ordered_json scene_json(const DemoReport& report, std::size_t index) {
  const Scene& scene = report.scenes[index];
  const SceneCheck& check = report.checks[index];
  const PlanReport& planned = scene.plan->report;
  nlohmann::ordered_json json;
  json["name"] = scene.name;
  json["slices"] = scene.plan->mask.slices.size();
  json["pairs"] = area(scene.plan->mask);
  json["balance"] = planned.balance;
  json["rank_pairs"] = planned.rank_area;
  json["planned_bytes"] = planned.total_bytes;
  json["ring_bytes"] = planned.ring_bytes;
  json["lower_bound_bytes"] = check.bound_bytes;
  json["forward_bytes"] = check.forward_bytes;
  json["backward_bytes"] = check.backward_bytes;
  json["bytes_as_planned"] = check.byte_fault.empty();
  json["forward_seconds"] = check.forward_seconds;
  json["backward_seconds"] = check.backward_seconds;
  json["reference_seconds"] = check.reference_seconds;
  for (const TensorCheck& tensor : check.tensors) {
    auto& error = json["error"][tensor.name];
    error["error"] = tensor.error;
    error["allowed"] = tensor.allowed;
    error["holds"] = tensor.holds;
  }
  json["pictures"] = report.pictures[index];
  json["holds"] = check.holds();
  return json;
}

}  // namespace

bool DemoReport::holds() const {
  return std::all_of(checks.begin(), checks.end(),
                     [](const SceneCheck& check) { return check.holds(); });
}

std::string report_text(const DemoReport& report) {
  std::ostringstream text;
  const Corpus& corpus = report.corpus;
  text << "Attention over " << grouped(corpus.num_tokens()) << " tokens of real text in "
       << grouped(corpus.num_documents()) << " documents (" << sources_text(corpus) << ")\n"
       << kDemoHeadsQ << " query heads on " << kDemoHeadsKv << " kv heads of " << kDemoHeadDim
       << ", " << dtype_name(report.type) << ", on " << report.launch << '\n'
       << "Each result is compared with dense float64 attention, largest error <= allowed error\n";
  for (std::size_t s = 0; s < report.scenes.size(); ++s) write_scene(text, report, s);
  text << '\n' << (report.holds() ? "All checks hold.\n" : "SOME CHECKS FAILED.\n");
  return text.str();
}

std::string report_json(const DemoReport& report) {
  nlohmann::ordered_json json;
  json["tokens"] = report.corpus.num_tokens();
  json["documents"] = report.corpus.num_documents();
  json["sources"] = report.corpus.sources;
  json["heads_q"] = kDemoHeadsQ;
  json["heads_kv"] = kDemoHeadsKv;
  json["head_dim"] = kDemoHeadDim;
  json["launch"] = report.launch;
  json["dtype"] = dtype_name(report.type);
  json["device"] = report.device;
  json["transport"] = report.transport;
  json["masks"] = nlohmann::ordered_json::array();
  for (std::size_t s = 0; s < report.scenes.size(); ++s) {
    json["masks"].push_back(scene_json(report, s));
  }
  json["holds"] = report.holds();
  // File names may hold any bytes; JSON may not.
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace magi::cli
