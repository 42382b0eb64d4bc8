// SPDX-License-Identifier: Apache-2.0
#include "comm/nvlink/shared_windows.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/words.hpp"
#include "comm/net/local_socket.hpp"
#include "comm/net/machine.hpp"
#include "comm/net/start_together.hpp"
#include "cuda/device.hpp"

namespace magi::comm {
namespace {

constexpr const char* kBackend = "nvlink";

/// Gathers a value of every rank. Collective.
template <typename Value>
std::vector<Value> gather_values(Communicator& base, const Value& own) {
  const auto all = base.allgather_sync(bytes_of(own));
  std::vector<Value> values;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    values.push_back(value_of<Value>(all[rank], rank));
  }
  return values;
}

RankCard own_card(std::int32_t device) {
  RankCard card{.process = own_process(), .device = device};
  const std::string boot = own_machine().boot;
  std::memcpy(card.boot_id.data(), boot.data(), std::min(boot.size(), card.boot_id.size()));
  struct stat space {};
  if (stat("/proc/self/ns/pid", &space) == 0) card.process_space = space.st_ino;
  cudaDeviceProp properties{};
  cuda_check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  std::memcpy(card.gpu.data(), properties.uuid.bytes, card.gpu.size());
  return card;
}

bool is_one_process(const RankCard& a, const RankCard& b) {
  return a.process.pid == b.process.pid && a.process.start_ticks == b.process.start_ticks &&
         a.process_space == b.process_space;
}

/// A rank's block for the others: an address for ranks of its process, a socket for others.
struct BlockOffer {
  const std::shared_ptr<MappedMemory>* block = nullptr;
  std::uint64_t size_bytes = 0;
  std::uint64_t socket = 0;
};

/// Sends the file descriptor of a block to ranks of other processes, and receives theirs.
class DescriptorSwap {
 public:
  DescriptorSwap(std::int32_t rank, const std::vector<RankCard>& cards,
                 std::chrono::milliseconds limit)
      : rank_(rank), cards_(cards), end_(std::chrono::steady_clock::now() + limit) {}

  /// Opens the socket to which others connect, before the offer is published.
  std::uint64_t listen() {
    std::uint64_t number = 0;
    fill_random(std::as_writable_bytes(std::span(&number, 1)));
    listener_ = LocalSocket::listen_at(address(number), static_cast<int>(cards_.size()));
    if (!listener_) throw CommError("a socket's name is taken", CommFailure::System);
    return number;
  }

  /// Returns the others' descriptors by rank. Higher ranks connect to lower ones.
  std::vector<FileDescriptor> run(const std::vector<BlockOffer>& offers,
                                  const FileDescriptor& own) {
    std::vector<FileDescriptor> taken(cards_.size());
    std::vector<std::pair<std::int32_t, LocalSocket>> lower;
    for (std::int32_t peer = 0; peer < rank_; ++peer) {
      if (is_here(peer)) continue;
      lower.emplace_back(peer, connect(peer, offers[static_cast<std::size_t>(peer)].socket));
      LocalSocket& socket = lower.back().second;
      check(socket.send_value(rank_, end_), peer);
      check(socket.send_descriptor(own.get(), end_), peer);
    }
    std::size_t missing = 0;
    for (auto peer = static_cast<std::size_t>(rank_) + 1; peer < cards_.size(); ++peer) {
      missing += is_here(static_cast<std::int32_t>(peer)) ? 0 : 1;
    }
    while (missing > 0) missing -= welcome(own, taken) ? 1 : 0;
    for (auto& [peer, socket] : lower) take(socket, peer, taken);
    return taken;
  }

 private:
  bool is_here(std::int32_t peer) const {
    return is_one_process(cards_[static_cast<std::size_t>(peer)],
                          cards_[static_cast<std::size_t>(rank_)]);
  }
  static std::string address(std::uint64_t number) {
    return "magi/" + std::to_string(geteuid()) + "/gpu/" + hex(number);
  }

  LocalSocket connect(std::int32_t peer, std::uint64_t number) const {
    auto socket = LocalSocket::connect_to(address(number));
    if (!socket || !socket->peer().is_same_user) {
      throw CommError("it cannot reach the socket of rank " + std::to_string(peer),
                      CommFailure::System);
    }
    return std::move(*socket);
  }

  /// Accepts a connection. Returns false, and closes it, for a process outside the group.
  bool welcome(const FileDescriptor& own, std::vector<FileDescriptor>& taken) {
    if (!listener_->wait_readable(end_)) {
      throw CommError("a rank did not ask for its memory in time", CommFailure::Timeout);
    }
    auto socket = listener_->accept();
    std::int32_t peer = -1;
    if (!socket || !socket->peer().is_same_user ||
        socket->receive_value(peer, end_) != LocalSocket::Result::Done) {
      return false;
    }
    if (peer <= rank_ || static_cast<std::size_t>(peer) >= cards_.size()) return false;
    take(*socket, peer, taken);
    check(socket->send_descriptor(own.get(), end_), peer);
    return true;
  }

  void take(LocalSocket& socket, std::int32_t peer, std::vector<FileDescriptor>& taken) const {
    check(socket.receive_descriptor(taken[static_cast<std::size_t>(peer)], end_), peer);
  }

  static void check(LocalSocket::Result result, std::int32_t peer) {
    if (result == LocalSocket::Result::Done) return;
    throw CommError(
        "rank " + std::to_string(peer) +
            (result == LocalSocket::Result::Timeout ? " did not answer in time"
                                                    : " ended while memory was shared"),
        result == LocalSocket::Result::Timeout ? CommFailure::Timeout : CommFailure::PeerDied);
  }

  const std::int32_t rank_;
  const std::vector<RankCard>& cards_;
  const Deadline end_;
  std::optional<LocalSocket> listener_;
};

/// Returns the text of what body() throws, or an empty text.
template <typename Body>
std::string trouble_of(const Body& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace

void agree_sync(Communicator& base, const std::string& trouble) {
  const auto all = base.allgather_sync(std::as_bytes(std::span(trouble.data(), trouble.size())));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    const std::string text(reinterpret_cast<const char*>(all[rank].data()), all[rank].size());
    throw CommError("rank " + std::to_string(rank) + " cannot join " + kBackend + ": " + text,
                    CommFailure::System);
  }
}

std::vector<RankCard> exchange_cards(Communicator& base, std::int32_t device) {
  RankCard card;
  std::string trouble = trouble_of([&] { card = own_card(device); });
  std::vector<RankCard> cards = gather_values(base, card);
  const auto rank = static_cast<std::size_t>(base.rank());
  for (std::size_t peer = 0; peer < cards.size() && trouble.empty(); ++peer) {
    if (peer == rank) continue;
    const std::string name = "rank " + std::to_string(peer);
    if (cards[peer].boot_id != card.boot_id) trouble = name + " is on another host";
    // Ranks of one process on one GPU are a test; two processes on one GPU are a mistake.
    if (cards[peer].gpu == card.gpu && !is_one_process(cards[peer], card)) {
      trouble = name + " has the same GPU (device " + std::to_string(device) + " here)";
    }
  }
  agree_sync(base, trouble);
  return cards;
}

std::vector<std::shared_ptr<MappedMemory>> share_memory(Communicator& base,
                                                        const std::vector<RankCard>& cards,
                                                        std::size_t size_bytes,
                                                        std::chrono::milliseconds deadline) {
  const auto rank = static_cast<std::size_t>(base.rank());
  const RankCard& own = cards[rank];
  std::vector<std::int32_t> devices;
  for (const RankCard& card : cards) {
    if (!is_one_process(card, own)) continue;
    if (std::ranges::find(devices, card.device) == devices.end()) devices.push_back(card.device);
  }
  std::vector<std::shared_ptr<MappedMemory>> blocks(cards.size());
  DescriptorSwap swap(base.rank(), cards, deadline);
  FileDescriptor descriptor;
  BlockOffer offer{.block = &blocks[rank]};
  agree_sync(base, trouble_of([&] {
               blocks[rank] = MappedMemory::create(size_bytes, own.device, devices);
               descriptor = blocks[rank]->export_fd();
               offer.size_bytes = blocks[rank]->size_bytes();
               offer.socket = swap.listen();
             }));
  const std::vector<BlockOffer> offers = gather_values(base, offer);
  agree_sync(base, trouble_of([&] {
               const auto descriptors = swap.run(offers, descriptor);
               for (std::size_t peer = 0; peer < cards.size(); ++peer) {
                 if (peer == rank) continue;
                 blocks[peer] = is_one_process(cards[peer], own)
                                    ? *offers[peer].block
                                    : MappedMemory::import(descriptors[peer],
                                                           offers[peer].size_bytes, own.device);
               }
             }));
  return blocks;
}

}  // namespace magi::comm
