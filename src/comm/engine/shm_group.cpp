// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/engine/ring_group.hpp"
#include "comm/net/group_log.hpp"
#include "comm/net/group_size.hpp"
#include "comm/net/machine.hpp"
#include "comm/net/process_watch.hpp"
#include "comm/net/start_together.hpp"

namespace magi::comm {
namespace {

using Gathered = std::vector<std::vector<std::byte>>;

/// The first message of every rank to the others. Rank 0 owns the region.
struct Hello {
  std::uint64_t magic = kRegionMagic;
  std::uint64_t nonce = 0;
  ProcessId process;
  std::int32_t rank = 0;
  std::int32_t num_ranks = 0;
  std::int32_t region_fd = -1;
  std::int32_t user = 0;
};

std::vector<Hello> read_hellos(const Gathered& all, std::int32_t num_ranks) {
  std::vector<Hello> hellos(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Hello& hello = hellos[i] = value_of<Hello>(all[i], i);
    if (hello.magic != kRegionMagic || hello.rank != static_cast<std::int32_t>(i) ||
        hello.num_ranks != num_ranks) {
      throw CommError("at the place of rank " + std::to_string(i) + " of " +
                          std::to_string(num_ranks) + " is a process that calls itself rank " +
                          std::to_string(hello.rank) + " of " + std::to_string(hello.num_ranks),
                      CommFailure::System);
    }
  }
  return hellos;
}

struct Joined {
  std::shared_ptr<SharedRegion> region;
  std::shared_ptr<ProcessWatch> watch;
};

Joined join(const std::vector<Hello>& hellos, std::shared_ptr<SharedRegion> own_region) {
  const Hello& owner = hellos.front();
  const auto num_ranks = static_cast<std::int32_t>(hellos.size());
  Joined joined{.region = std::move(own_region)};
  if (!joined.region) {
    if (owner.user != static_cast<std::int32_t>(geteuid())) {
      throw CommError("rank 0 runs as user " + std::to_string(owner.user) + "; expected " +
                          std::to_string(geteuid()),
                      CommFailure::System);
    }
    joined.region = SharedRegion::open(static_cast<pid_t>(owner.process.pid), owner.region_fd);
    const ControlLayout layout(num_ranks);
    if (joined.region->file_bytes() < layout.num_bytes()) {
      throw CommError("the shared memory of rank 0 is too small", CommFailure::System);
    }
    const GroupBlock& group = layout.group(joined.region->map(0, layout.num_bytes()));
    const bool is_ours = group.magic == kRegionMagic && group.nonce == owner.nonce;
    joined.region->unmap(0);
    if (!is_ours) throw CommError("rank 0 names foreign memory", CommFailure::System);
  }
  std::vector<ProcessId> processes;
  for (const Hello& hello : hellos) processes.push_back(hello.process);
  joined.watch = std::make_shared<ProcessWatch>(processes);
  return joined;
}

}  // namespace

std::unique_ptr<Communicator> make_shm_group_with(std::int32_t rank, std::int32_t num_ranks,
                                                  const Bootstrap& bootstrap,
                                                  const EngineOptions& options) {
  check_group_size(rank, num_ranks, options.comm);
  std::shared_ptr<SharedRegion> region;  // of rank 0
  const Gathered hellos = start_together(bootstrap, num_ranks, [&] {
    Hello hello{.process = own_process(),
                .rank = rank,
                .num_ranks = num_ranks,
                .user = static_cast<std::int32_t>(geteuid())};
    if (rank == 0) {
      fill_random(std::as_writable_bytes(std::span(&hello.nonce, 1)));
      region = make_group_region(num_ranks, hello.nonce);
      hello.region_fd = region->fd();
    }
    return bytes_of(hello);
  });
  Joined joined;
  start_together(bootstrap, num_ranks, [&] {
    joined = join(read_hellos(hellos, num_ranks), std::move(region));
    return std::vector<std::byte>();
  });
  const auto has_ended = [watch = joined.watch](std::int32_t other) {
    return watch->has_ended(static_cast<std::size_t>(other));
  };
  auto group = make_ring_group(
      std::make_shared<Engine>(rank, num_ranks, joined.region, options, has_ended), "shm");
  log_group(*group, [] { return "all ranks are processes of this machine"; });
  return group;
}

}  // namespace magi::comm

namespace magi {

std::unique_ptr<Communicator> make_shm_group(std::int32_t rank, std::int32_t num_ranks,
                                             const Bootstrap& bootstrap,
                                             const CommOptions& options) {
  return comm::make_shm_group_with(rank, num_ranks, bootstrap, {.comm = options});
}

}  // namespace magi
