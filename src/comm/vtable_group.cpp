// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "base/words.hpp"
#include "comm/net/first_failure.hpp"
#include "comm/net/group_log.hpp"
#include "comm/rows/call_options.hpp"
#include "comm/rows/exchange_kind.hpp"
#include "magi/comm.hpp"
#include "magi/comm_vtable.h"

// A communicator over a caller's table of C functions.
namespace magi {
namespace {

/// Throws the exception that stands for a status that is not OK.
[[noreturn]] void throw_status(std::int32_t status, std::int32_t failure, const std::string& text) {
  if (status == MAGI_VTABLE_INVALID_ARGUMENT) throw InvalidArgument(text);
  if (status == MAGI_VTABLE_CUDA_ERROR) throw CudaError(text, failure);
  if (status == MAGI_VTABLE_COMM_ERROR) {
    const bool is_known = failure >= static_cast<std::int32_t>(CommFailure::Timeout) &&
                          failure <= static_cast<std::int32_t>(CommFailure::System);
    throw CommError(text, is_known ? static_cast<CommFailure>(failure) : CommFailure::System);
  }
  throw InternalError(text);
}

/// Owner of the caller's context; exchanges under way keep it alive.
struct Supplied {
  explicit Supplied(const magi_comm_vtable& table) : vtable(table) {}
  ~Supplied() { vtable.destroy(vtable.context); }
  Supplied(const Supplied&) = delete;
  Supplied& operator=(const Supplied&) = delete;

  void check(std::int32_t status) {
    const bool answers_done = (vtable.features & MAGI_COMM_ANSWERS_DONE) != 0;
    if (status == (answers_done ? MAGI_VTABLE_DONE : MAGI_VTABLE_OK)) return;
    if (status == MAGI_VTABLE_OK) {
      const CommError error("an interrupt cut a function of the supplied group short",
                            CommFailure::Aborted);
      failure.set(error);
      vtable.abort(vtable.context, error.what());
      throw error;
    }
    std::int32_t kind = 0;
    const char* text = vtable.last_error(vtable.context, &kind);
    try {
      throw_status(status, kind, text != nullptr ? text : "the supplied group failed");
    } catch (const CommError& error) {
      failure.set(error);
      throw;
    }
  }

  const magi_comm_vtable vtable;
  comm::FirstFailure failure;  ///< set by abort too, from any thread
};

/// One exchange of the caller's.
class SuppliedExchange final : public PendingExchange {
 public:
  SuppliedExchange(std::shared_ptr<Supplied> group, const ByteExchange& exchange, void* stream)
      : group_(std::move(group)) {
    const magi_byte_exchange args{.struct_size = sizeof(magi_byte_exchange),
                                  .send = exchange.send,
                                  .receive = exchange.receive,
                                  .send_bytes = exchange.send_bytes.data(),
                                  .receive_bytes = exchange.receive_bytes.data(),
                                  .device = exchange.device,
                                  .kind = static_cast<std::int32_t>(exchange.kind),
                                  .plan_digest = exchange.tag.plan_digest,
                                  .content = exchange.content,
                                  .stage = exchange.tag.stage,
                                  .options = exchange.tag.options};
    group_->check(group_->vtable.start_bytes(group_->vtable.context, &args, stream, &exchange_));
  }
  ~SuppliedExchange() override {
    if (exchange_ != nullptr) group_->vtable.release(group_->vtable.context, exchange_);
  }
  void wait_sync() override {
    if (exchange_ == nullptr) return;
    group_->check(group_->vtable.wait(group_->vtable.context, exchange_));
  }

 private:
  std::shared_ptr<Supplied> group_;
  void* exchange_ = nullptr;
};

/// The values that ranks must agree on before bytes mean anything.
struct Announcement {
  std::uint64_t plan_digest = 0;
  std::uint64_t content = 0;
  std::uint64_t options = 0;
  std::int64_t num_bytes = 0;
  std::int32_t kind = 0;
  std::int32_t stage = 0;
  friend bool operator==(const Announcement&, const Announcement&) = default;
};

std::string describe(const Announcement& call) {
  return "stage " + std::to_string(call.stage) + " of " +
         comm::kind_name(static_cast<ExchangeKind>(call.kind)) + ", plan " + hex(call.plan_digest) +
         ", " + std::to_string(call.num_bytes) + " bytes of content " + hex(call.content);
}

bool is_same_exchange(const Announcement& a, const Announcement& b) {
  return a.plan_digest == b.plan_digest && a.kind == b.kind && a.stage == b.stage;
}

/// Announces what every rank is about to send, and with it what it calls, told to the others before
/// any byte moves: a supplier may end the process where sizes differ.
class Announcements {
 public:
  Announcements(std::int32_t rank, const ByteExchange& exchange)
      : rank_(rank), kind_(exchange.kind) {
    Announcement call{.plan_digest = exchange.tag.plan_digest,
                      .content = exchange.content,
                      .options = exchange.tag.options,
                      .kind = static_cast<std::int32_t>(exchange.kind),
                      .stage = exchange.tag.stage};
    for (std::size_t peer = 0; peer < exchange.send_bytes.size(); ++peer) {
      call.num_bytes = exchange.send_bytes[peer];
      sent_.push_back(call);
      call.num_bytes = exchange.receive_bytes[peer];
      expected_.push_back(call);
    }
    seen_.resize(sent_.size());
  }

  /// Throws CommError unless every rank sends what this one expects of it.
  void compare_sync(const std::shared_ptr<Supplied>& group, const ExchangeTag& tag) {
    const std::vector<std::int64_t> sizes(sent_.size(), sizeof(Announcement));
    SuppliedExchange(group,
                     {.send = sent_.data(),
                      .receive = seen_.data(),
                      .send_bytes = sizes,
                      .receive_bytes = sizes,
                      .kind = kind_,
                      .tag = tag},
                     nullptr)
        .wait_sync();
    for (std::size_t peer = 0; peer < seen_.size(); ++peer) {
      if (seen_[peer] == expected_[peer]) continue;
      throw CommError(mismatch_text(peer), CommFailure::PlanMismatch);
    }
  }

 private:
  std::string mismatch_text(std::size_t peer) const {
    const Announcement &seen = seen_[peer], &expected = expected_[peer];
    const auto other = static_cast<std::int32_t>(peer);
    if (is_same_exchange(seen, expected) && seen.options != expected.options) {
      return comm::other_options_text(rank_, expected.options, other, seen.options) + "; in " +
             describe(expected);
    }
    return "rank " + std::to_string(rank_) + " expects from rank " + std::to_string(other) + " " +
           describe(expected) + ", but it is in " + describe(seen);
  }

  std::int32_t rank_;
  ExchangeKind kind_;
  std::vector<Announcement> sent_, expected_, seen_;  ///< [num_ranks]
};

void take_gathered(void* sink_context, std::int32_t rank, const void* bytes,
                   std::size_t num_bytes) {
  auto& all = *static_cast<std::vector<std::vector<std::byte>>*>(sink_context);
  const auto* data = static_cast<const std::byte*>(bytes);
  if (rank >= 0 && static_cast<std::size_t>(rank) < all.size() && num_bytes > 0) {
    all[static_cast<std::size_t>(rank)].assign(data, data + num_bytes);
  }
}

class SuppliedGroup final : public Communicator {
 public:
  explicit SuppliedGroup(const magi_comm_vtable& vtable)
      : group_(std::make_shared<Supplied>(vtable)) {}

  std::int32_t rank() const override { return group_->vtable.rank; }
  std::int32_t num_ranks() const override { return group_->vtable.num_ranks; }
  const char* backend() const override { return group_->vtable.backend; }

  std::vector<std::vector<std::byte>> allgather_sync(std::span<const std::byte> bytes) override {
    std::vector<std::vector<std::byte>> all(static_cast<std::size_t>(num_ranks()));
    group_->check(
        group_->vtable.allgather(context(), bytes.data(), bytes.size(), take_gathered, &all));
    return all;
  }

  bool has_device_exchange() const override { return has(MAGI_COMM_MOVES_DEVICE_MEMORY); }

  void abort(const std::string& reason) noexcept override {
    if (group_->failure.set(rank(), " aborted: ", reason.c_str(), CommFailure::Aborted)) {
      comm::log_abort(rank(), reason);
    }
    group_->vtable.abort(context(), reason.c_str());
  }

  void check() const override { group_->failure.check(); }

  void close_sync() override { group_->check(group_->vtable.close(context())); }

 protected:
  std::unique_ptr<PendingExchange> start_checked(const ByteExchange& exchange,
                                                 void* stream) override {
    if (exchange.device == kCpuDevice && !has(MAGI_COMM_COMPARES_EXCHANGES)) {
      Announcements(rank(), exchange).compare_sync(group_, exchange.tag);
    }
    return std::make_unique<SuppliedExchange>(group_, exchange, stream);
  }

 private:
  void* context() { return group_->vtable.context; }
  bool has(std::int32_t feature) const { return (group_->vtable.features & feature) != 0; }

  std::shared_ptr<Supplied> group_;
};

void check_entries(const magi_comm_vtable& vtable) {
  const std::pair<const char*, bool> entries[] = {{"backend", vtable.backend != nullptr},
                                                  {"allgather", vtable.allgather != nullptr},
                                                  {"start_bytes", vtable.start_bytes != nullptr},
                                                  {"wait", vtable.wait != nullptr},
                                                  {"release", vtable.release != nullptr},
                                                  {"abort", vtable.abort != nullptr},
                                                  {"close", vtable.close != nullptr},
                                                  {"destroy", vtable.destroy != nullptr},
                                                  {"last_error", vtable.last_error != nullptr}};
  for (const auto& [name, is_set] : entries) {
    if (!is_set) throw invalid(std::string("vtable.") + name, "null", "all entries set");
  }
}

}  // namespace

std::unique_ptr<Communicator> make_vtable_group(const magi_comm_vtable& vtable) {
  if (vtable.struct_size < sizeof(magi_comm_vtable)) {
    throw invalid("vtable.struct_size", vtable.struct_size,
                  std::to_string(sizeof(magi_comm_vtable)) + " or more");
  }
  if (vtable.num_ranks < 1) throw invalid("vtable.num_ranks", vtable.num_ranks, "1 or more");
  if (vtable.rank < 0 || vtable.rank >= vtable.num_ranks) {
    throw invalid("vtable.rank", vtable.rank, "0 to " + std::to_string(vtable.num_ranks - 1));
  }
  check_entries(vtable);
  return std::make_unique<SuppliedGroup>(vtable);
}

}  // namespace magi
