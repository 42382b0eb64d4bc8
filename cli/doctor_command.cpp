// SPDX-License-Identifier: Apache-2.0
#include <sys/utsname.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/env.hpp"
#include "commands.hpp"
#include "cost.hpp"
#include "doctor/calibrate.hpp"
#include "doctor/gpus.hpp"
#include "doctor/small_attention.hpp"
#include "draw/numbers.hpp"
#include "files.hpp"
#include "kernels/attention/backend.hpp"
#include "magi/error.hpp"

namespace magi::cli {
namespace {

using Json = nlohmann::ordered_json;

struct DoctorFlags {
  bool is_calibrating = false;
  std::string out;
  bool is_json = false;
};

/// What ran a small attention, and what was wrong.
struct Checked {
  std::string where;
  std::string backend;
  std::vector<std::string> findings;
};

Checked check_on(const std::string& where, const std::string& backend, const RankPlace& place) {
  Checked checked{.where = where, .backend = backend, .findings = {}};
  try {
    checked.findings = check_small_attention(place);
  } catch (const std::exception& error) {
    checked.findings.emplace_back(error.what());
  }
  return checked;
}

std::vector<Checked> check_devices(const GpuMachine& machine) {
  std::vector<Checked> all{check_on("the CPU", find_backend("", kCpuDevice)->name(), host_place())};
  for (std::size_t i = 0; i < machine.gpus.size(); ++i) {
    const GpuFacts& gpu = machine.gpus[i];
    if (gpu.backend.empty()) continue;
    const auto device = static_cast<std::int32_t>(i);
    on_gpu(device, [&](const RankPlace& place) {
      all.push_back(check_on("GPU " + std::to_string(i), gpu.backend, place));
    });
  }
  return all;
}

/// Its processor and system.
std::string machine_text() {
  utsname system{};
  ::uname(&system);
  return std::string(system.machine) + ", " + std::to_string(std::thread::hardware_concurrency()) +
         " cores, " + system.sysname + " " + system.release;
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

std::string cost_text(const CostFile& file) {
  const std::string path = cost_file_env();
  return path.empty()
             ? "the library's own, of an H200 (" + std::string(kCostFileVariable) + " is not set)"
             : path + ", of " + file.machine;
}

void print_text(const GpuMachine& machine, const NcclFacts& nccl, const CostFile& cost,
                const std::vector<Checked>& checks) {
  std::cout << "machine       " << machine_text() << '\n'
            << "driver        " << (machine.driver.empty() ? "none" : machine.driver) << '\n';
  for (std::size_t i = 0; i < machine.gpus.size(); ++i) {
    const GpuFacts& gpu = machine.gpus[i];
    std::cout << "GPU " << i << "         " << gpu.name << ", compute capability " << gpu.major
              << '.' << gpu.minor << ", " << draw::bytes_text(gpu.memory_bytes) << ", "
              << (gpu.backend.empty() ? "no attention: " + gpu.refusal
                                      : "attention by " + gpu.backend)
              << '\n';
  }
  if (machine.gpus.size() > 1) std::cout << "peer access   " << peer_text(machine) << '\n';
  std::cout << "NCCL          " << (nccl.version.empty() ? nccl.refusal : nccl.version) << '\n'
            << "backends     ";
  for (const std::string& name : backend_names()) std::cout << ' ' << name;
  std::cout << "\ncosts         " << cost_text(cost) << '\n';
  for (const Checked& check : checks) {
    std::cout << "attention     " << check.where << ", " << check.backend << ": "
              << (check.findings.empty() ? "right" : "WRONG") << '\n';
    for (const std::string& finding : check.findings) std::cout << "  " << finding << '\n';
  }
}

void print_json(const GpuMachine& machine, const NcclFacts& nccl, const CostFile& cost,
                const std::vector<Checked>& checks) {
  Json gpus = Json::array(), attention = Json::array(), peers = Json::array();
  for (const GpuFacts& gpu : machine.gpus) {
    gpus.push_back({{"name", gpu.name},
                    {"compute_capability", {gpu.major, gpu.minor}},
                    {"memory_bytes", gpu.memory_bytes},
                    {"backend", gpu.backend},
                    {"refusal", gpu.refusal}});
  }
  for (const bool can_access : machine.has_peer_access) peers.push_back(can_access);
  for (const Checked& check : checks) {
    attention.push_back({{"where", check.where},
                         {"backend", check.backend},
                         {"holds", check.findings.empty()},
                         {"findings", check.findings}});
  }
  const Json report{{"machine", machine_text()},
                    {"driver", machine.driver},
                    {"gpus", gpus},
                    {"peer_access", peers},
                    {"nccl", {{"version", nccl.version}, {"refusal", nccl.refusal}}},
                    {"backends", backend_names()},
                    {"cost_file", cost_file_env()},
                    {"cost", Json::parse(cost_file_to_json(cost))},
                    {"attention", attention}};
  std::cout << report.dump(1) << '\n';
}

Exit run_doctor(const DoctorFlags& flags) {
  const GpuMachine machine = find_gpus();
  if (flags.is_calibrating) {
    const CostFile file =
        calibrate(machine, [](const std::string& line) { std::cerr << line << '\n'; });
    const std::string text = cost_file_to_json(file);
    if (flags.out.empty()) {
      std::cout << text;
    } else {
      write_file("--out", flags.out, text);
      std::cerr << "wrote " << flags.out << '\n';
    }
    return Exit::Ok;
  }
  if (!flags.out.empty()) {
    throw InvalidArgument("--out is given without --calibrate; allowed: both");
  }
  const CostFile cost = cost_of_environment();
  const std::vector<Checked> checks = check_devices(machine);
  (flags.is_json ? print_json : print_text)(machine, find_nccl(), cost, checks);
  const bool holds =
      std::ranges::all_of(checks, [](const Checked& check) { return check.findings.empty(); });
  return holds ? Exit::Ok : Exit::CheckFailed;
}

}  // namespace

Command add_doctor_command(CLI::App& parent) {
  CLI::App* app = parent.add_subcommand(
      "doctor", "Tell what this machine has for attention, and run a little of it");
  const auto flags = std::make_shared<DoctorFlags>();
  app->add_flag("--calibrate", flags->is_calibrating,
                "measure the constants of the cost model and print them as a cost file");
  app->add_option("--out", flags->out, "with --calibrate: the file to write")->type_name("FILE");
  app->add_flag("--json", flags->is_json, "print JSON (a cost file always is)");
  return {.app = app, .run = [flags] { return run_doctor(*flags); }};
}

}  // namespace magi::cli
