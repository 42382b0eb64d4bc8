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

// Maps device memory of every rank of one host into the address space of every other.
namespace magi::comm {

/// A rank's card, by which the others find out whether they can share memory with it.
struct RankCard {
  std::array<char, 40> boot_id{};       ///< of the running kernel: differs between hosts
  std::array<unsigned char, 16> gpu{};  ///< the driver's unique number
  ProcessId process;
  std::uint64_t process_space = 0;  ///< the namespace of process numbers
  std::int32_t device = 0;          ///< CUDA ordinal in its process
};

/// Gathers the cards of all ranks. Collective. Throws CommError on all ranks if they are on several
/// hosts or if processes share a GPU.
std::vector<RankCard> exchange_cards(Communicator& base, std::int32_t device);

/// Returns by rank a block of `size_bytes` zeroed bytes on that rank's GPU, mapped in this process
/// for its own GPU. Collective. Throws CommError on all ranks, naming the rank that failed.
std::vector<std::shared_ptr<MappedMemory>> share_memory(Communicator& base,
                                                        const std::vector<RankCard>& cards,
                                                        std::size_t size_bytes,
                                                        std::chrono::milliseconds deadline);

/// Gathers every rank's error text (empty: none). Throws CommError on all ranks if there is one.
void agree_sync(Communicator& base, const std::string& trouble);

}  // namespace magi::comm
