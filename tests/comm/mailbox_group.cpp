// SPDX-License-Identifier: Apache-2.0
#include "comm/mailbox_group.hpp"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

namespace magi::testing {
namespace {

using Bytes = std::vector<std::byte>;
using Address = std::tuple<std::int64_t, std::int32_t, std::int32_t>;  ///< call, from, to

class Mailboxes {
 public:
  void post(const Address& address, const void* data, std::size_t num_bytes) {
    const auto* bytes = static_cast<const std::byte*>(data);
    const std::lock_guard lock(mutex_);
    boxes_[address].assign(bytes, bytes + num_bytes);
    changed_.notify_all();
  }
  /// False where nothing comes within 20 s, or a rank aborts.
  bool take(const Address& address, Bytes& bytes) {
    std::unique_lock lock(mutex_);
    const auto is_over = [&] { return is_aborted_ || boxes_.contains(address); };
    changed_.wait_for(lock, std::chrono::seconds(20), is_over);
    if (!boxes_.contains(address)) return false;
    bytes = std::move(boxes_[address]);
    boxes_.erase(address);
    return true;
  }
  void abort() {
    const std::lock_guard lock(mutex_);
    is_aborted_ = true;
    changed_.notify_all();
  }
  bool is_aborted() {
    const std::lock_guard lock(mutex_);
    return is_aborted_;
  }

 private:
  bool is_aborted_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Address, Bytes> boxes_;
};

struct Member {
  std::shared_ptr<Mailboxes> mailboxes;
  std::int32_t rank = 0;
  std::int32_t num_ranks = 0;
  std::int64_t num_calls = 0;
  std::string message = {};
};
struct Pending {
  std::int64_t call = 0;
  std::byte* receive = nullptr;
  std::vector<std::int64_t> sizes = {};
};

Member& member(void* context) { return *static_cast<Member*>(context); }

std::int32_t fail(Member& self, const std::string& text) {
  self.message = text;
  return MAGI_VTABLE_COMM_ERROR;
}

std::int32_t allgather(void* context, const void* bytes, std::size_t num_bytes,
                       magi_gather_sink sink, void* sink_context) {
  Member& self = member(context);
  if (self.mailboxes->is_aborted()) return fail(self, "aborted");
  const std::int64_t call = self.num_calls++;
  for (std::int32_t peer = 0; peer < self.num_ranks; ++peer) {
    self.mailboxes->post({call, self.rank, peer}, bytes, num_bytes);
  }
  for (std::int32_t peer = 0; peer < self.num_ranks; ++peer) {
    Bytes seen;
    if (!self.mailboxes->take({call, peer, self.rank}, seen)) return fail(self, "no message");
    sink(sink_context, peer, seen.data(), seen.size());
  }
  return MAGI_VTABLE_OK;
}

std::int32_t start_bytes(void* context, const magi_byte_exchange* args, void* /*stream*/,
                         void** exchange) {
  Member& self = member(context);
  if (self.mailboxes->is_aborted()) return fail(self, "aborted");
  const std::int64_t call = self.num_calls++;
  const auto* send = static_cast<const std::byte*>(args->send);
  for (std::int32_t peer = 0; peer < self.num_ranks; ++peer) {
    const auto num_bytes = static_cast<std::size_t>(args->send_bytes[peer]);
    self.mailboxes->post({call, self.rank, peer}, send, num_bytes);
    send += num_bytes;
  }
  *exchange = std::make_unique<Pending>(
                  Pending{.call = call,
                          .receive = static_cast<std::byte*>(args->receive),
                          .sizes = {args->receive_bytes, args->receive_bytes + self.num_ranks}})
                  .release();
  return MAGI_VTABLE_OK;
}

std::int32_t wait(void* context, void* exchange) {
  Member& self = member(context);
  const Pending& pending = *static_cast<Pending*>(exchange);
  std::byte* receive = pending.receive;
  for (std::int32_t peer = 0; peer < self.num_ranks; ++peer) {
    const auto expected = static_cast<std::size_t>(pending.sizes[static_cast<std::size_t>(peer)]);
    Bytes seen;
    if (!self.mailboxes->take({pending.call, peer, self.rank}, seen)) return fail(self, "no bytes");
    if (seen.size() != expected) return fail(self, "bytes of another size");
    if (expected > 0) std::memcpy(receive, seen.data(), expected);
    receive += expected;
  }
  return MAGI_VTABLE_OK;
}

const char* last_error(void* context, std::int32_t* failure) {
  const bool is_aborted = member(context).mailboxes->is_aborted();
  *failure = static_cast<std::int32_t>(is_aborted ? CommFailure::Aborted : CommFailure::Timeout);
  return member(context).message.c_str();
}

}  // namespace

std::vector<magi_comm_vtable> make_mailbox_tables(std::int32_t num_ranks) {
  const auto mailboxes = std::make_shared<Mailboxes>();
  std::vector<magi_comm_vtable> tables;
  for (std::int32_t rank = 0; rank < num_ranks; ++rank) {
    auto self = std::make_unique<Member>(
        Member{.mailboxes = mailboxes, .rank = rank, .num_ranks = num_ranks});
    tables.push_back(
        {.struct_size = sizeof(magi_comm_vtable),
         .context = self.release(),
         .rank = rank,
         .num_ranks = num_ranks,
         .backend = "mailbox",
         .features = 0,
         .allgather = allgather,
         .start_bytes = start_bytes,
         .wait = wait,
         .release = [](void*, void* exchange) { delete static_cast<Pending*>(exchange); },
         .abort = [](void* context, const char*) { member(context).mailboxes->abort(); },
         .close = [](void*) -> std::int32_t { return MAGI_VTABLE_OK; },
         .destroy = [](void* context) { delete static_cast<Member*>(context); },
         .last_error = last_error});
  }
  return tables;
}

std::vector<std::unique_ptr<Communicator>> make_mailbox_group(std::int32_t num_ranks) {
  std::vector<std::unique_ptr<Communicator>> group;
  for (const magi_comm_vtable& table : make_mailbox_tables(num_ranks)) {
    group.push_back(make_vtable_group(table));
  }
  return group;
}

}  // namespace magi::testing
