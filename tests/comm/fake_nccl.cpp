// SPDX-License-Identifier: Apache-2.0
#include "comm/fake_nccl.hpp"

#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/nccl/nccl_library.hpp"

// NCCL's functions among threads of one process, in host memory. Nothing blocks, as of a
// communicator that was asked not to: exchanges end while their state is asked for.
// FAKE_NCCL_VERSION: the version it gives; FAKE_NCCL_LACKS_SEND: it has no ncclSend.
namespace {

using magi::comm::NcclConfig;
using magi::comm::NcclResult;
using magi::comm::NcclUniqueId;
using Bytes = std::vector<std::byte>;

struct World {
  int num_ranks = 0;
  int num_joined = 0;
  int num_finalized = 0;
  std::map<std::pair<int, int>, std::deque<Bytes>> boxes;  ///< by (from, to)
};

struct Receive {
  int peer;
  void* data;
  std::size_t size;
};

std::mutex lock_of_all;
std::map<std::string, std::shared_ptr<World>> worlds;
std::map<int, NcclResult> reports;  ///< by rank
std::atomic<int> num_ids = 0, num_live = 0, num_aborts = 0, last_max_ctas = 0;

}  // namespace

namespace magi::comm {
struct NcclOpaque {
  std::shared_ptr<World> world;
  int rank = 0;
  bool is_finalizing = false;
  std::deque<Receive> receives;
};
}  // namespace magi::comm

namespace {
using magi::comm::NcclHandle;

/// Calls of an open group of this thread.
struct Group {
  int depth = 0;
  std::vector<std::tuple<NcclHandle, int, Bytes>> sends;
  std::vector<std::pair<NcclHandle, Receive>> receives;
};
thread_local Group group;

NcclResult progress(NcclHandle comm) {
  World& world = *comm->world;
  if (world.num_joined < world.num_ranks) return NcclResult::InProgress;
  while (!comm->receives.empty()) {
    const Receive& wanted = comm->receives.front();
    auto& box = world.boxes[{wanted.peer, comm->rank}];
    if (box.empty()) return NcclResult::InProgress;
    if (box.front().size() != wanted.size) return NcclResult::InvalidUsage;
    std::memcpy(wanted.data, box.front().data(), wanted.size);
    box.pop_front();
    comm->receives.pop_front();
  }
  return NcclResult::Success;
}
}  // namespace

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

FAKE_EXPORT NcclResult ncclGetVersion(int* version) {
  *version = FAKE_NCCL_VERSION;
  return NcclResult::Success;
}

FAKE_EXPORT NcclResult ncclGetUniqueId(NcclUniqueId* id) {
  const std::string text = "fake-" + std::to_string(num_ids++);
  id->bytes.fill('\0');
  std::memcpy(id->bytes.data(), text.data(), text.size());
  return NcclResult::Success;
}

FAKE_EXPORT NcclResult ncclCommInitRankConfig(NcclHandle* comm, int num_ranks, NcclUniqueId id,
                                              int rank, NcclConfig* config) {
  const bool is_right = config->size == 40 && config->magic == 0xcafebeef &&
                        config->version == 21700 && config->blocking == 0 &&
                        config->cga_cluster_size == INT32_MIN && config->net_name == nullptr;
  if (!is_right) return NcclResult::InvalidArgument;
  last_max_ctas = config->max_ctas;
  const std::lock_guard lock(lock_of_all);
  auto& world = worlds[id.bytes.data()];
  if (world == nullptr) world = std::make_shared<World>(World{.num_ranks = num_ranks});
  ++world->num_joined;
  ++num_live;
  *comm = new magi::comm::NcclOpaque{.world = world, .rank = rank};
  return NcclResult::InProgress;
}

FAKE_EXPORT NcclResult ncclCommFinalize(NcclHandle comm) {
  const std::lock_guard lock(lock_of_all);
  comm->is_finalizing = true;
  ++comm->world->num_finalized;
  return NcclResult::InProgress;
}

FAKE_EXPORT NcclResult ncclCommDestroy(NcclHandle comm) {
  --num_live;
  delete comm;
  return NcclResult::Success;
}

FAKE_EXPORT NcclResult ncclCommAbort(NcclHandle comm) {
  ++num_aborts;
  return ncclCommDestroy(comm);
}

FAKE_EXPORT NcclResult ncclCommGetAsyncError(NcclHandle comm, NcclResult* state) {
  const std::lock_guard lock(lock_of_all);
  if (const auto report = reports.find(comm->rank); report != reports.end()) {
    *state = report->second;
    reports.erase(report);
    return NcclResult::Success;
  }
  *state = progress(comm);
  const World& world = *comm->world;
  if (*state == NcclResult::Success && comm->is_finalizing &&
      world.num_finalized < world.num_ranks) {
    *state = NcclResult::InProgress;
  }
  return NcclResult::Success;
}

FAKE_EXPORT const char* ncclGetErrorString(NcclResult result) {
  return result == NcclResult::RemoteError ? "remote process exited or there was a network error"
                                           : "fake failure";
}

FAKE_EXPORT const char* ncclGetLastError(NcclHandle) { return "last words"; }

FAKE_EXPORT NcclResult ncclGroupStart() {
  ++group.depth;
  return NcclResult::Success;
}

FAKE_EXPORT NcclResult ncclGroupEnd() {
  if (--group.depth > 0) return NcclResult::Success;
  const Group calls = std::exchange(group, {});
  const std::lock_guard lock(lock_of_all);
  for (const auto& [comm, peer, bytes] : calls.sends) {
    comm->world->boxes[{comm->rank, peer}].push_back(bytes);
  }
  for (const auto& [comm, receive] : calls.receives) comm->receives.push_back(receive);
  return NcclResult::InProgress;
}

#ifndef FAKE_NCCL_LACKS_SEND
FAKE_EXPORT NcclResult ncclSend(const void* data, std::size_t count, int type, int peer,
                                NcclHandle comm, void* /*stream*/) {
  if (type != 1 || group.depth == 0 || peer >= comm->world->num_ranks) {
    return NcclResult::InvalidArgument;
  }
  const auto* bytes = static_cast<const std::byte*>(data);
  group.sends.emplace_back(comm, peer, Bytes(bytes, bytes + count));
  return NcclResult::Success;
}
#endif

FAKE_EXPORT NcclResult ncclRecv(void* data, std::size_t count, int type, int peer, NcclHandle comm,
                                void* /*stream*/) {
  if (type != 1 || group.depth == 0) return NcclResult::InvalidArgument;
  group.receives.push_back({comm, {.peer = peer, .data = data, .size = count}});
  return NcclResult::Success;
}

FAKE_EXPORT void fake_nccl_report(int rank, int result) {
  const std::lock_guard lock(lock_of_all);
  reports[rank] = static_cast<NcclResult>(result);
}
FAKE_EXPORT int fake_nccl_num_live() { return num_live; }
FAKE_EXPORT int fake_nccl_num_aborts() { return num_aborts; }
FAKE_EXPORT int fake_nccl_max_ctas() { return last_max_ctas; }
