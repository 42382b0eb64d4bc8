// SPDX-License-Identifier: Apache-2.0
#include "doctor/machine.hpp"

#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>
#include <limits>
#include <thread>

#include "kernels/attention/backend.hpp"
#include "magi/error.hpp"

namespace magi::cli {
namespace {

/// MemAvailable of the system: what could be taken without swapping.
std::int64_t available_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  std::int64_t kibibytes = 0;
  while (file >> name >> kibibytes && std::getline(file, unit)) {
    if (name == "MemAvailable:") return kibibytes * 1024;
  }
  return 0;
}

std::string dims_text(const HeadDims& dims) {
  const bool is_bounded = dims.max != std::numeric_limits<std::int32_t>::max();
  std::string text = std::to_string(dims.min) +
                     (is_bounded ? " to " + std::to_string(dims.max) : std::string(" and more"));
  if (dims.multiple > 1) text += " in steps of " + std::to_string(dims.multiple);
  return text;
}

/// Notes that a backend serves a device, where it does.
bool serve(BackendFacts& facts, std::int32_t device, const std::string& where) {
  try {
    facts.limits = find_backend(facts.name, device)->limits();
  } catch (const InvalidArgument&) {
    return false;
  }
  facts.served.push_back({.ordinal = device, .name = where});
  return true;
}

}  // namespace

HostFacts find_host() {
  utsname system{};
  ::uname(&system);
  HostFacts facts;
  facts.num_cores = static_cast<std::int32_t>(std::thread::hardware_concurrency());
  facts.text = std::string(system.machine) + ", " + std::to_string(facts.num_cores) + " cores, " +
               system.sysname + " " + system.release;
  facts.memory_bytes = std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  facts.available_bytes = available_bytes();
  struct statvfs shm {};
  if (::statvfs("/dev/shm", &shm) == 0) {
    const auto block = static_cast<std::int64_t>(shm.f_frsize);
    facts.shm_bytes = static_cast<std::int64_t>(shm.f_blocks) * block;
    facts.shm_free_bytes = static_cast<std::int64_t>(shm.f_bavail) * block;
  }
  return facts;
}

std::vector<BackendFacts> find_backends(const GpuMachine& machine) {
  std::vector<BackendFacts> all;
  for (const std::string& name : backend_names()) {
    BackendFacts facts{.name = name, .served = {}, .refused = {}, .limits = {}};
    serve(facts, kCpuDevice, "the CPU");
    for (std::size_t i = 0; i < machine.gpus.size(); ++i) {
      const std::string where = "GPU " + std::to_string(i);
      if (serve(facts, static_cast<std::int32_t>(i), where)) continue;
      if (!machine.gpus[i].refusal.empty()) {
        facts.refused.push_back(where + ": " + machine.gpus[i].refusal);
      }
    }
    if (facts.served.empty() && machine.gpus.empty()) facts.refused.push_back(machine.refusal);
    all.push_back(std::move(facts));
  }
  return all;
}

std::string limits_text(const AttentionLimits& limits) {
  const std::string qk = dims_text(limits.dim_qk), v = dims_text(limits.dim_v);
  std::string text = "head dims " + qk + (v == qk ? "" : " (of v " + v + ")");
  std::string types;
  for (const DType type : {DType::BFloat16, DType::Float16, DType::Float32, DType::Float64}) {
    if (limits.takes(type)) types += (types.empty() ? "" : ", ") + std::string(dtype_name(type));
  }
  text += "; " + types;
  const std::pair<bool, const char*> features[] = {
      {limits.has_sink, "sinks"},
      {limits.has_softcap, "softcap"},
      {limits.has_max_logits, "max_logits"},
      {limits.has_dlse, "gradients through lse"},
  };
  std::string with, without;
  for (const auto& [has, name] : features) {
    std::string& list = has ? with : without;
    list += (list.empty() ? "" : ", ") + std::string(name);
  }
  if (!with.empty()) text += "; with " + with;
  if (!without.empty()) text += "; without " + without;
  return text;
}

}  // namespace magi::cli
