// SPDX-License-Identifier: Apache-2.0
#include <sys/random.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/process_watch.hpp"
#include "comm/ring_group.hpp"
#include "comm/validate.hpp"

namespace magi::comm {
namespace {

using Gathered = std::vector<std::vector<std::byte>>;

/// What every rank tells the others first. Rank 0 owns the region.
struct Hello {
  std::uint64_t magic = kRegionMagic;
  std::uint64_t nonce = 0;
  ProcessId process;
  std::int32_t rank = 0;
  std::int32_t num_ranks = 0;
  std::int32_t region_fd = -1;
  std::int32_t user = 0;
};

std::uint64_t random_nonce() {
  std::uint64_t nonce = 0;
  if (getrandom(&nonce, sizeof(nonce), 0) != static_cast<ssize_t>(sizeof(nonce))) {
    throw CommError("the machine gave no random bytes", CommFailure::System);
  }
  return nonce;
}

Gathered exchange(const Bootstrap& bootstrap, std::span<const std::byte> bytes,
                  std::int32_t num_ranks) {
  Gathered all = bootstrap(bytes);
  if (all.size() != static_cast<std::size_t>(num_ranks)) {
    throw CommError("the bootstrap gave the bytes of " + std::to_string(all.size()) +
                        " ranks; expected " + std::to_string(num_ranks),
                    CommFailure::System);
  }
  return all;
}

std::vector<Hello> read_hellos(const Gathered& all, std::int32_t num_ranks) {
  std::vector<Hello> hellos(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::string place = "rank " + std::to_string(i);
    if (all[i].size() != sizeof(Hello)) {
      throw CommError("the bootstrap gave " + std::to_string(all[i].size()) + " bytes for " +
                          place + "; expected " + std::to_string(sizeof(Hello)),
                      CommFailure::System);
    }
    std::memcpy(&hellos[i], all[i].data(), sizeof(Hello));
    const Hello& hello = hellos[i];
    if (hello.magic != kRegionMagic || hello.rank != static_cast<std::int32_t>(i) ||
        hello.num_ranks != num_ranks) {
      throw CommError("at the place of " + place + " of " + std::to_string(num_ranks) +
                          " is a process that calls itself rank " + std::to_string(hello.rank) +
                          " of " + std::to_string(hello.num_ranks),
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
  if (owner.region_fd < 0) {
    throw CommError("rank 0 has no shared memory", CommFailure::System);
  }
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

/// Every rank learns of every rank's trouble, so that no one starts in a group that is not whole.
void agree_all_joined(const Bootstrap& bootstrap, const std::string& trouble,
                      std::int32_t num_ranks) {
  const Gathered all =
      exchange(bootstrap, std::as_bytes(std::span(trouble.data(), trouble.size())), num_ranks);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    throw CommError(
        "rank " + std::to_string(rank) + " cannot join the group: " +
            std::string(reinterpret_cast<const char*>(all[rank].data()), all[rank].size()),
        CommFailure::System);
  }
}

}  // namespace

std::unique_ptr<Communicator> make_shm_group_with(std::int32_t rank, std::int32_t num_ranks,
                                                  const Bootstrap& bootstrap,
                                                  const EngineOptions& options) {
  check_group_size(rank, num_ranks, options.comm);
  std::shared_ptr<SharedRegion> own_region;
  std::string trouble;
  Hello hello{.process = own_process(),
              .rank = rank,
              .num_ranks = num_ranks,
              .user = static_cast<std::int32_t>(geteuid())};
  if (rank == 0) {
    try {
      hello.nonce = random_nonce();
      own_region = make_group_region(num_ranks, hello.nonce);
      hello.region_fd = own_region->fd();
    } catch (const CommError& error) {
      trouble = error.what();
    }
  }
  const Gathered all = exchange(bootstrap, std::as_bytes(std::span(&hello, 1)), num_ranks);
  Joined joined;
  if (trouble.empty()) {
    try {
      joined = join(read_hellos(all, num_ranks), std::move(own_region));
    } catch (const CommError& error) {
      trouble = error.what();
    }
  }
  agree_all_joined(bootstrap, trouble, num_ranks);
  const auto has_ended = [watch = joined.watch](std::int32_t other) {
    return watch->has_ended(static_cast<std::size_t>(other));
  };
  return make_ring_group(
      std::make_shared<Engine>(rank, num_ranks, joined.region, options, has_ended), "shm");
}

}  // namespace magi::comm

namespace magi {

std::unique_ptr<Communicator> make_shm_group(std::int32_t rank, std::int32_t num_ranks,
                                             const Bootstrap& bootstrap,
                                             const CommOptions& options) {
  return comm::make_shm_group_with(rank, num_ranks, bootstrap, {.comm = options});
}

}  // namespace magi
