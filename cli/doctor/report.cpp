// SPDX-License-Identifier: Apache-2.0
#include "doctor/report.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/env.hpp"
#include "base/words.hpp"
#include "draw/numbers.hpp"
#include "magi/version.hpp"

namespace magi::cli {
namespace {

using Json = nlohmann::ordered_json;

/// Lines "label         text"; a label that goes on is empty.
class Page {
 public:
  void line(std::string_view label, std::string_view text) {
    constexpr std::size_t kLabelWidth = 14;
    text_ += label;
    text_.append(label.size() < kLabelWidth ? kLabelWidth - label.size() : 1, ' ');
    text_ += text;
    text_ += '\n';
  }
  std::string text() && { return std::move(text_); }

 private:
  std::string text_;
};

std::string names_of(const std::vector<ServedDevice>& devices) {
  std::string text;
  for (const ServedDevice& device : devices) text += (text.empty() ? "" : ", ") + device.name;
  return text;
}

std::string free_text(std::int64_t free_bytes, std::int64_t bytes) {
  return draw::bytes_text(free_bytes) + " free of " + draw::bytes_text(bytes);
}

/// GPUs by number that do not all reach each other's memory, or "all".
std::string peer_text(const GpuMachine& machine) {
  const std::size_t count = machine.gpus.size();
  std::string missing;
  for (std::size_t i = 0; i < count * count; ++i) {
    if (machine.has_peer_access[i]) continue;
    missing += (missing.empty() ? "not " : ", ") + std::to_string(i / count) + " to " +
               std::to_string(i % count);
  }
  return missing.empty() ? "each GPU to every other" : missing;
}

void add_gpus(Page& page, const GpuMachine& machine) {
  std::string driver = machine.driver.empty() ? "none" : machine.driver;
  if (!machine.runtime.empty()) driver += " (this magi is built with " + machine.runtime + ")";
  page.line("driver", driver);
  if (!machine.refusal.empty()) page.line("GPUs", "none: " + machine.refusal);
  for (std::size_t i = 0; i < machine.gpus.size(); ++i) {
    const GpuFacts& gpu = machine.gpus[i];
    page.line(
        "GPU " + std::to_string(i),
        gpu.name + ", compute capability " + std::to_string(gpu.major) + '.' +
            std::to_string(gpu.minor) + ", " + free_text(gpu.free_bytes, gpu.memory_bytes) + ", " +
            std::to_string(gpu.num_sms) + " multiprocessors with " +
            draw::bytes_text(gpu.block_shared_bytes) + " of shared memory a block, " +
            (gpu.backend.empty() ? "no attention: " + gpu.refusal : "attention by " + gpu.backend));
  }
  if (machine.gpus.size() > 1) page.line("peer access", peer_text(machine));
}

void add_ranks(Page& page, const RanksEnvironment& ranks) {
  page.line("ranks", ranks.launcher.empty()
                         ? "no launcher: magi starts its ranks itself"
                         : "rank " + std::to_string(ranks.rank) + " of " +
                               std::to_string(ranks.num_ranks) + ", started by " + ranks.launcher);
  for (const auto& [name, value] : ranks.variables) page.line("", name + "=" + value);
  for (const std::string& finding : ranks.findings) page.line("", "WRONG: " + finding);
  for (const std::string& note : ranks.notes) page.line("", "note: " + note);
}

void add_backends(Page& page, const std::vector<BackendFacts>& backends) {
  std::string_view label = "backends";
  for (const BackendFacts& backend : backends) {
    page.line(label, backend.served.empty() ? backend.name + " serves nothing here"
                                            : backend.name + " serves " + names_of(backend.served) +
                                                  ": " + limits_text(backend.limits));
    for (const std::string& refused : backend.refused) page.line("", "  " + refused);
    label = "";
  }
}

Json gpus_json(const GpuMachine& machine) {
  Json gpus = Json::array();
  for (const GpuFacts& gpu : machine.gpus) {
    gpus.push_back({{"name", gpu.name},
                    {"compute_capability", {gpu.major, gpu.minor}},
                    {"memory_bytes", gpu.memory_bytes},
                    {"free_bytes", gpu.free_bytes},
                    {"multiprocessors", gpu.num_sms},
                    {"block_shared_bytes", gpu.block_shared_bytes},
                    {"backend", gpu.backend},
                    {"refusal", gpu.refusal}});
  }
  return gpus;
}

Json ranks_json(const RanksEnvironment& ranks) {
  Json variables = Json::object();
  for (const auto& [name, value] : ranks.variables) variables[name] = value;
  return {{"launcher", ranks.launcher},   {"rank", ranks.rank},
          {"num_ranks", ranks.num_ranks}, {"variables", variables},
          {"findings", ranks.findings},   {"notes", ranks.notes}};
}

Json backends_json(const std::vector<BackendFacts>& backends) {
  Json all = Json::array();
  for (const BackendFacts& backend : backends) {
    Json served = Json::array();
    for (const ServedDevice& device : backend.served) served.push_back(device.name);
    all.push_back(
        {{"name", backend.name},
         {"served", served},
         {"refused", backend.refused},
         {"limits", backend.served.empty() ? std::string() : limits_text(backend.limits)}});
  }
  return all;
}

Json checks_json(const std::vector<Checked>& checks) {
  Json all = Json::array();
  for (const Checked& check : checks) {
    all.push_back({{"where", check.where},
                   {"backend", check.backend},
                   {"holds", check.findings.empty()},
                   {"findings", check.findings}});
  }
  return all;
}

}  // namespace

std::vector<std::string> DoctorReport::unfit() const {
  std::vector<std::string> reasons = ranks.findings;
  for (std::size_t i = 0; i < machine.gpus.size(); ++i) {
    if (!machine.gpus[i].backend.empty()) continue;
    reasons.push_back("GPU " + std::to_string(i) + " has no attention: " + machine.gpus[i].refusal);
  }
  return reasons;
}

Exit DoctorReport::exit() const {
  const bool holds =
      std::ranges::all_of(checks, [](const Checked& check) { return check.findings.empty(); });
  if (!holds || checks.empty()) return Exit::CheckFailed;
  return unfit().empty() ? Exit::Ok : Exit::Unfit;
}

std::string doctor_text(const DoctorReport& report) {
  Page page;
  const HostFacts& host = report.host;
  page.line("magi", kVersion);
  page.line("machine", host.text);
  page.line("memory", free_text(host.available_bytes, host.memory_bytes));
  page.line("shared memory",
            free_text(host.shm_free_bytes, host.shm_bytes) + " in /dev/shm, which NCCL may use");
  add_gpus(page, report.machine);
  page.line("NCCL", report.nccl.version.empty() ? "none: " + report.nccl.refusal
                                                : report.nccl.version + ", " + report.nccl.path);
  add_ranks(page, report.ranks);
  add_backends(page, report.backends);
  page.line("costs", report.cost_path.empty() ? "the library's own, of an H200 (" +
                                                    std::string(kCostFileVariable) + " is not set)"
                                              : report.cost_path + ", of " + report.cost.machine);
  for (const Checked& check : report.checks) {
    page.line("attention", check.where + ", " + check.backend + ": " +
                               (check.findings.empty() ? "right" : "WRONG"));
    for (const std::string& finding : check.findings) page.line("", finding);
  }
  switch (report.exit()) {
    case Exit::Ok:
      page.line("summary", "attention runs on this machine and is right");
      break;
    case Exit::Unfit:
      for (const std::string& reason : report.unfit()) page.line("summary", "unfit: " + reason);
      break;
    default:
      page.line("summary", "attention on this machine is WRONG: do not use it");
  }
  return std::move(page).text();
}

std::string doctor_json(const DoctorReport& report) {
  Json peers = Json::array();
  for (const bool can_access : report.machine.has_peer_access) peers.push_back(can_access);
  const Json json{
      {"version", kVersion},
      {"machine", report.host.text},
      {"cores", report.host.num_cores},
      {"memory",
       {{"bytes", report.host.memory_bytes}, {"free_bytes", report.host.available_bytes}}},
      {"shared_memory",
       {{"bytes", report.host.shm_bytes}, {"free_bytes", report.host.shm_free_bytes}}},
      {"driver", report.machine.driver},
      {"cuda", report.machine.runtime},
      {"no_gpus", report.machine.refusal},
      {"gpus", gpus_json(report.machine)},
      {"peer_access", peers},
      {"nccl",
       {{"version", report.nccl.version},
        {"path", report.nccl.path},
        {"refusal", report.nccl.refusal}}},
      {"ranks", ranks_json(report.ranks)},
      {"backends", backends_json(report.backends)},
      {"cost_file", report.cost_path},
      {"cost", Json::parse(cost_file_to_json(report.cost))},
      {"attention", checks_json(report.checks)},
      {"unfit", report.unfit()},
      {"exit_code", static_cast<int>(report.exit())}};
  return json.dump(1) + "\n";
}

}  // namespace magi::cli
