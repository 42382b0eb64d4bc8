// SPDX-License-Identifier: Apache-2.0
#include "ranks/gpu_group.hpp"

#include "base/check.hpp"
#include "base/log.hpp"
#include "common/values.hpp"

namespace magi::cli {
namespace {

std::shared_ptr<Communicator> make_nccl(const std::shared_ptr<Communicator>& base,
                                        const GpuGroupOptions& options) {
  const Bootstrap bootstrap = [base](std::span<const std::byte> bytes) {
    return base->allgather_sync(bytes);
  };
  return make_nccl_group(base->rank(), base->num_ranks(), base->rank(), bootstrap,
                         {.deadline = options.deadline, .library = options.nccl});
}

std::shared_ptr<Communicator> make_nvlink(const std::shared_ptr<Communicator>& base,
                                          const GpuGroupOptions& options) {
  return make_nvlink_group(base, base->rank(), {.deadline = options.deadline});
}

}  // namespace

const char* transport_name(Transport transport) {
  switch (transport) {
    case Transport::Shm:
      return "shm";
    case Transport::Nvlink:
      return "nvlink";
    case Transport::Nccl:
      return "nccl";
  }
  throw InternalError("broken invariant: every transport has a name");
}

Transport transport_from_name(const std::string& flag, const std::string& name) {
  for (const Transport transport : {Transport::Shm, Transport::Nvlink, Transport::Nccl}) {
    if (name == transport_name(transport)) return transport;
  }
  throw invalid(flag, shown(name), "nvlink, nccl, shm");
}

std::shared_ptr<Communicator> make_gpu_group(const std::shared_ptr<Communicator>& base,
                                             const GpuGroupOptions& options) {
  if (options.transport == Transport::Nccl) return make_nccl(base, options);
  if (options.transport == Transport::Nvlink) return make_nvlink(base, options);
  std::string reason;
  try {
    return make_nvlink(base, options);
  } catch (const CommError& error) {  // on all ranks alike
    reason = error.what();
  }
  try {
    auto group = make_nccl(base, options);
    if (base->rank() == 0) {
      log(LogLevel::Info, "comm", [&] { return "the group goes over nccl, as " + reason; });
    }
    return group;
  } catch (const CommError& error) {
    throw CommError("no nvlink: " + reason + "; no nccl: " + error.what(), error.failure());
  }
}

}  // namespace magi::cli
