// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "base/env.hpp"
#include "commands.hpp"
#include "common/cost.hpp"
#include "common/files.hpp"
#include "common/flags.hpp"
#include "doctor/calibrate.hpp"
#include "doctor/report.hpp"
#include "doctor/small_attention.hpp"
#include "magi/error.hpp"
#include "magi/runtime.hpp"

namespace magi::cli {
namespace {

constexpr std::int32_t kRanks = 2;

struct DoctorFlags {
  bool is_calibrating = false;
  std::string out;
  bool is_json = false;
};

using Findings = std::vector<std::string>;

Checked check_on(const std::string& where, const std::string& backend,
                 const std::function<Findings()>& check) {
  Checked checked{.where = where, .backend = backend, .findings = {}};
  try {
    checked.findings = check();
  } catch (const std::exception& error) {
    checked.findings.emplace_back(error.what());
  }
  return checked;
}

/// Calls its argument with the place of a rank.
using AtPlace = std::function<void(const std::function<void(const RankPlace&)>& use)>;

/// One rank and two ranks at a place; the two exchange rows through the host's memory.
void check_place(const std::string& where, const std::string& backend, const AtPlace& at_place,
                 std::vector<Checked>& all) {
  for (const std::int32_t num_ranks : {1, kRanks}) {
    all.push_back(check_on((num_ranks == 1 ? "" : "two ranks on ") + where, backend, [&] {
      return check_small_attention(num_ranks, backend, [&](const RankBody& body) {
        run_ranks(num_ranks, [&](Communicator& group) {
          at_place([&](const RankPlace& place) { body(group, place); });
        });
      });
    }));
  }
}

/// Two ranks with a GPU each, over what is fastest between them.
Checked check_pair(const std::string& backend) {
  std::string transport;
  Checked checked = check_on("two ranks on GPUs 0 and 1", backend, [&] {
    return check_small_attention(kRanks, backend, [&transport](const RankBody& body) {
      transport = run_gpu_ranks(kRanks, body);
    });
  });
  if (!transport.empty()) checked.where += " over " + transport;
  return checked;
}

/// Every backend on every device that it serves.
std::vector<Checked> check_devices(const std::vector<BackendFacts>& backends) {
  std::vector<Checked> all;
  for (const BackendFacts& backend : backends) {
    std::int32_t num_gpus = 0;
    for (const ServedDevice& device : backend.served) {
      if (device.ordinal == kCpuDevice) {
        check_place(
            "the CPU", backend.name, [](const auto& use) { use(host_place()); }, all);
      } else {
        check_place(
            "GPU " + std::to_string(device.ordinal), backend.name,
            [&](const auto& use) { on_gpu(device.ordinal, use); }, all);
        if (device.ordinal < kRanks) ++num_gpus;
      }
    }
    if (num_gpus == kRanks) all.push_back(check_pair(backend.name));
  }
  return all;
}

DoctorReport examine(const GpuMachine& machine) {
  DoctorReport report{.host = find_host(), .machine = machine, .nccl = find_nccl(), .ranks = {}};
  report.ranks = read_ranks_environment(
      env_variable, static_cast<std::int32_t>(machine.gpus.size()), report.host.num_cores);
  report.backends = find_backends(machine);
  report.cost_path = cost_file_env();
  report.cost = cost_of_environment();
  report.checks = check_devices(report.backends);
  return report;
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
  const DoctorReport report = examine(machine);
  std::cout << (flags.is_json ? doctor_json(report) : doctor_text(report));
  return report.exit();
}

}  // namespace

Command add_doctor_command(CLI::App& parent) {
  CLI::App* app = parent.add_subcommand(
      "doctor",
      "Tell what this machine can run and why not, and run a little attention; exit code 0: it was "
      "right, 1: it was wrong, 3: a GPU has no attention or the ranks' environment contradicts "
      "itself");
  app->footer("Example:\n  magi doctor --calibrate --out costs.json");
  const auto flags = std::make_shared<DoctorFlags>();
  app->add_flag("--calibrate", flags->is_calibrating,
                "measure the constants of the cost model and print them as a cost file");
  add_path(*app, "--out", "FILE", flags->out, "with --calibrate: the file to write");
  app->add_flag("--json", flags->is_json, "print JSON (a cost file always is)");
  return {.app = app, .run = [flags] { return run_doctor(*flags); }};
}

}  // namespace magi::cli
