// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/net/process_watch.hpp"
#include "cuda/exported_memory.hpp"
#include "magi/comm.hpp"

// Device memory of every rank of one host in the address space of every other.
namespace magi::comm {

/// The words of ranks to each other to find out whether they can share memory.
struct RankCard {
  std::array<char, 40> boot_id{};       ///< of the running kernel: the same on one host alone
  std::array<unsigned char, 16> gpu{};  ///< the driver's unique number
  ProcessId process;
  std::uint64_t process_space = 0;  ///< within which process numbers mean something
  std::int32_t device = 0;          ///< CUDA ordinal in its process
};

/// The cards of all ranks. Collective. Throws CommError, on all ranks alike, where they are on
/// several hosts, or where processes share a GPU.
std::vector<RankCard> exchange_cards(Communicator& base, std::int32_t device);

/// A block of `size_bytes` zeroed bytes of every rank's GPU, by rank, each mapped in this process
/// for the own GPU. Collective. Throws CommError, on all ranks alike, naming the rank that could
/// not.
std::vector<std::shared_ptr<MappedMemory>> share_memory(Communicator& base,
                                                        const std::vector<RankCard>& cards,
                                                        std::size_t size_bytes,
                                                        std::chrono::milliseconds deadline);

/// Tells every rank of every rank's trouble (empty: none) and throws CommError where there is one.
void agree_sync(Communicator& base, const std::string& trouble);

}  // namespace magi::comm
