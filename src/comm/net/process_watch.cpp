// SPDX-License-Identifier: Apache-2.0
#include "comm/net/process_watch.hpp"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

namespace magi::comm {
namespace {

struct ProcessStat {
  char state = '?';
  std::int64_t start_ticks = 0;
};

/// Fields 3 and 22 of /proc/PID/stat; nothing when the process is gone.
std::optional<ProcessStat> read_stat(std::int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  // The name, field 2, is in parentheses and may hold anything.
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(name_end + 1));
  ProcessStat stat;
  fields >> stat.state;
  std::string skipped;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  fields >> stat.start_ticks;
  return fields ? std::optional(stat) : std::nullopt;
}

bool is_alive(const ProcessId& id) {
  const auto stat = read_stat(id.pid);
  return stat && stat->state != 'Z' && stat->state != 'X' && stat->start_ticks == id.start_ticks;
}

}  // namespace

ProcessId own_process() {
  const std::int64_t pid = getpid();
  const auto stat = read_stat(pid);
  return {.pid = pid, .start_ticks = stat ? stat->start_ticks : 0};
}

ProcessWatch::ProcessWatch(const std::vector<ProcessId>& processes) {
  for (const ProcessId& id : processes) {
    FileDescriptor pidfd(static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(id.pid), 0)));
    // Opened too late: the number already belongs to another process.
    if (!is_alive(id)) pidfd = FileDescriptor();
    watched_.push_back({.id = id, .pidfd = std::move(pidfd)});
  }
}

bool ProcessWatch::has_ended(std::size_t idx) const {
  const Watched& process = watched_[idx];
  if (process.pidfd.get() < 0) return !is_alive(process.id);
  pollfd query{.fd = process.pidfd.get(), .events = POLLIN, .revents = 0};
  return poll(&query, 1, 0) == 1;
}

}  // namespace magi::comm
