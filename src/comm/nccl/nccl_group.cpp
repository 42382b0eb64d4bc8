// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_group.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.hpp"
#include "comm/nccl/nccl_watch.hpp"
#include "comm/net/group_log.hpp"
#include "comm/net/group_size.hpp"
#include "comm/net/machine.hpp"
#include "comm/net/start_together.hpp"

namespace magi::comm {
namespace {

using Bytes = std::vector<std::byte>;
using Clock = std::chrono::steady_clock;

/// The end of a group that was not closed waits no longer for NCCL.
constexpr std::chrono::milliseconds kEndTime{2000};
/// Connecting the failure channel takes no longer; a rank that cannot goes on without.
constexpr std::chrono::seconds kAlarmTime{3};

/// The first message of ranks to each other.
struct Hello {
  std::int32_t rank = 0;
  std::int32_t num_ranks = 0;
  std::int32_t version = 0;  ///< of NCCL
  std::int32_t max_ctas = 0;
  std::array<char, 48> boot{}, network{}, device{};
  std::array<char, 64> host{};  ///< ends with 0
};

/// The message of rank 0 to the others.
struct Welcome {
  NcclUniqueId id;
  FailureChannel::Invitation alarms;
};

template <std::size_t size>
void put(std::array<char, size>& place, const std::string& text) {
  std::copy_n(text.begin(), std::min(text.size(), size), place.begin());
}

class GroupStart {
 public:
  GroupStart(std::int32_t rank, std::int32_t num_ranks, const MakeCommDevice& make_device,
             const Bootstrap& bootstrap, const NcclOptions& options)
      : rank_(rank),
        num_ranks_(num_ranks),
        make_device_(make_device),
        bootstrap_(bootstrap),
        options_(options),
        alarms_(std::make_unique<FailureChannel>(rank, num_ranks)) {}

  void meet() {
    const auto hellos = start_together(bootstrap_, num_ranks_, [&] { return own_hello(); });
    for (std::size_t rank = 0; rank < hellos.size(); ++rank) {
      hellos_.push_back(value_of<Hello>(hellos[rank], rank));
    }
    check_hellos();
    alarms_->name_ranks(names());
    const auto welcomes =
        start_together(bootstrap_, num_ranks_, [&] { return rank_ == 0 ? welcome() : Bytes{}; });
    welcome_ = value_of<Welcome>(welcomes[0], 0);
    connect_alarms();
  }

  std::shared_ptr<const CommDevice> device() const { return device_; }
  std::shared_ptr<const NcclLibrary> library() const { return library_; }
  const NcclUniqueId& id() const { return welcome_.id; }
  std::unique_ptr<FailureChannel> take_alarms() { return std::move(alarms_); }

 private:
  Bytes own_hello() {
    device_ = make_device_();
    library_ = std::make_shared<NcclLibrary>(options_.library);
    Hello hello{.rank = rank_,
                .num_ranks = num_ranks_,
                .version = library_->version(),
                .max_ctas = options_.max_ctas};
    const Machine machine = own_machine();
    put(hello.boot, machine.boot);
    put(hello.network, machine.network);
    put(hello.device, device_->id());
    put(hello.host, machine.host.substr(0, hello.host.size() - 1));
    return bytes_of(hello);
  }

  void check_hellos() const {
    for (std::size_t i = 0; i < hellos_.size(); ++i) {
      const Hello& hello = hellos_[i];
      const std::string name = "rank " + std::to_string(i);
      if (hello.rank != static_cast<std::int32_t>(i) || hello.num_ranks != num_ranks_) {
        throw CommError("at the place of " + name + " of " + std::to_string(num_ranks_) +
                            " is a process that calls itself rank " + std::to_string(hello.rank) +
                            " of " + std::to_string(hello.num_ranks),
                        CommFailure::System);
      }
      if (hello.version != hellos_[0].version) {
        throw CommError(name + " has NCCL " + nccl_version_text(hello.version) + ", rank 0 has " +
                            nccl_version_text(hellos_[0].version) +
                            "; allowed: one version on all ranks",
                        CommFailure::System);
      }
      if (hello.max_ctas != hellos_[0].max_ctas) {
        throw CommError("max_ctas is " + std::to_string(hello.max_ctas) + " on " + name + ", " +
                            std::to_string(hellos_[0].max_ctas) +
                            " on rank 0; allowed: one value on all ranks",
                        CommFailure::System);
      }
      for (std::size_t other = 0; other < i; ++other) {
        if (hellos_[other].boot != hello.boot || hellos_[other].device != hello.device) continue;
        throw CommError("rank " + std::to_string(other) + " and " + name +
                            " have the same GPU; allowed: one rank for each GPU",
                        CommFailure::System);
      }
    }
  }

  /// "rank 1 on host2", or without hosts where all ranks are on one.
  std::vector<std::string> names() const {
    const bool is_one_host = std::all_of(hellos_.begin(), hellos_.end(), [&](const Hello& hello) {
      return hello.host == hellos_[0].host;
    });
    std::vector<std::string> found;
    for (const Hello& hello : hellos_) {
      const std::string host = is_one_host ? "" : std::string(" on ") + hello.host.data();
      found.push_back("rank " + std::to_string(hello.rank) + host);
    }
    return found;
  }

  bool shares_network(const Hello& hello) const {
    return hello.boot == hellos_[0].boot && hello.network == hellos_[0].network;
  }

  Bytes welcome() {
    Welcome given{};
    if (library_->get_unique_id(&given.id) != NcclResult::Success) {
      throw CommError("NCCL gave no identifier for the group", CommFailure::System);
    }
    const bool is_local = std::all_of(hellos_.begin(), hellos_.end(),
                                      [&](const Hello& hello) { return shares_network(hello); });
    given.alarms = alarms_->open(is_local ? TcpReach::ThisMachine : TcpReach::AnyMachine);
    return bytes_of(given);
  }

  void connect_alarms() {
    const auto connected = start_together(bootstrap_, num_ranks_, [&] {
      const bool is_connected =
          rank_ > 0 && alarms_->connect(welcome_.alarms,
                                        shares_network(hellos_[static_cast<std::size_t>(rank_)]),
                                        Clock::now() + kAlarmTime);
      if (rank_ > 0 && !is_connected) log_deaf();
      return bytes_of(std::uint8_t{is_connected});
    });
    if (rank_ != 0) return;
    std::vector<bool> is_connected;
    for (std::size_t rank = 0; rank < connected.size(); ++rank) {
      is_connected.push_back(value_of<std::uint8_t>(connected[rank], rank) != 0);
    }
    alarms_->accept(is_connected, Clock::now() + kAlarmTime);
  }

  void log_deaf() const noexcept {
    log(LogLevel::Warn, "comm", [&] {
      return "rank " + std::to_string(rank_) +
             " cannot connect to rank 0 beside NCCL: it learns that another rank has ended or " +
             "failed when a wait ends at its deadline of " +
             std::to_string(options_.deadline.count()) + " ms";
    });
  }

  std::int32_t rank_;
  std::int32_t num_ranks_;
  const MakeCommDevice& make_device_;
  const Bootstrap& bootstrap_;
  const NcclOptions& options_;
  std::unique_ptr<FailureChannel> alarms_;
  std::shared_ptr<const CommDevice> device_;
  std::shared_ptr<const NcclLibrary> library_;
  std::vector<Hello> hellos_;  ///< [num_ranks]
  Welcome welcome_{};
};

/// Nothing is left to wait for on the host.
class Enqueued final : public PendingExchange {
 public:
  void wait_sync() override {}
};

class NcclGroup final : public Communicator {
 public:
  NcclGroup(std::int32_t rank, std::int32_t num_ranks, const MakeCommDevice& make_device,
            Bootstrap bootstrap, const NcclOptions& options)
      : rank_(rank),
        num_ranks_(num_ranks),
        bootstrap_(std::move(bootstrap)),
        deadline_(options.deadline) {
    GroupStart start(rank, num_ranks, make_device, bootstrap_, options);
    start.meet();
    device_ = start.device();
    comm_ = std::make_shared<NcclComm>(start.library(), rank, num_ranks);
    watch_ = std::make_unique<NcclWatch>(comm_, device_, start.take_alarms(), rank, deadline_);
    guarded([&] {
      device_->run([&] {
        comm_->init(start.id(), options.max_ctas,
                    limit(deadline_, [] { return "all ranks to join NCCL's communicator"; }));
      });
    });
    log_group(*this, [&] {
      return "NCCL " + nccl_version_text(start.library()->version()) + " moves rows of GPU " +
             std::to_string(device_->ordinal());
    });
  }

  ~NcclGroup() override {
    try {
      if (!is_closed_) end_comm(std::min(deadline_, kEndTime));
    } catch (const std::exception&) {
      // Then the communicator is aborted instead.
    }
    watch_->leave();
  }

  std::int32_t rank() const override { return rank_; }
  std::int32_t num_ranks() const override { return num_ranks_; }
  const char* backend() const override { return "nccl"; }
  bool has_device_exchange() const override { return device_->ordinal() != kCpuDevice; }
  bool is_capturable() const override { return true; }

  std::vector<Bytes> allgather_sync(std::span<const std::byte> bytes) override {
    std::vector<Bytes> all;
    guarded([&] {
      check();
      all =
          start_together(bootstrap_, num_ranks_, [&] { return Bytes(bytes.begin(), bytes.end()); });
    });
    return all;
  }

  void abort(const std::string& reason) noexcept override { watch_->abort(reason); }

  void check() const override {
    watch_->throw_failure();
    if (!is_closed_) return;
    throw CommError("rank " + std::to_string(rank_) + " uses an nccl group after its close",
                    CommFailure::Aborted);
  }

  void close_sync() override {
    if (is_closed_) return;
    guarded([&] {
      watch_->throw_failure();
      watch_->drain_sync();
      allgather_sync({});
      end_comm(deadline_);
    });
    is_closed_ = true;
    watch_->leave();
  }

 protected:
  std::unique_ptr<PendingExchange> start_checked(const ByteExchange& exchange,
                                                 void* stream) override {
    if (exchange.device != device_->ordinal()) {
      throw invalid("exchange.device", exchange.device,
                    std::to_string(device_->ordinal()) + ", the GPU of this rank's nccl group");
    }
    check();
    NcclFlight flight{.sequence = num_exchanges_++, .kind = exchange.kind, .tag = exchange.tag};
    for (std::size_t peer = 0; peer < exchange.send_bytes.size(); ++peer) {
      if (exchange.send_bytes[peer] + exchange.receive_bytes[peer] == 0) continue;
      flight.peers.push_back(static_cast<std::int32_t>(peer));
    }
    if (flight.peers.empty()) return std::make_unique<Enqueued>();
    guarded([&] {
      device_->run([&] {
        flight.begin = device_->mark(stream);
        comm_->exchange(exchange, stream,
                        limit(deadline_, [&] { return watch_->describe(flight); }));
        flight.end = device_->mark(stream);
      });
    });
    watch_->add(std::move(flight));
    return std::make_unique<Enqueued>();
  }

 private:
  /// Runs calls whose failure is the group's, so that all ranks learn of it.
  void guarded(const std::function<void()>& calls) {
    try {
      calls();
    } catch (const CommError& error) {
      watch_->fail_as_bootstrap(error);
      watch_->throw_failure();  // the first one
    } catch (const std::exception& error) {
      abort(error.what());
      throw;
    }
  }

  /// Ends a wait of the host when the group fails, or at the deadline from now.
  template <typename Describe>
  NcclComm::Check limit(std::chrono::milliseconds time, const Describe& awaited) const {
    return [this, awaited, time, end = Clock::now() + time] {
      watch_->throw_failure();
      if (Clock::now() < end) return;
      throw CommError("rank " + std::to_string(rank_) + " waited " + std::to_string(time.count()) +
                          " ms for " + awaited(),
                      CommFailure::Timeout);
    };
  }

  void end_comm(std::chrono::milliseconds time) {
    watch_->drain_sync();
    watch_->throw_failure();
    device_->run(
        [&] { comm_->finalize(limit(time, [] { return "NCCL to end its communicator"; })); });
  }

  std::int32_t rank_;
  std::int32_t num_ranks_;
  std::shared_ptr<const CommDevice> device_;
  Bootstrap bootstrap_;
  std::chrono::milliseconds deadline_;
  std::shared_ptr<NcclComm> comm_;
  std::unique_ptr<NcclWatch> watch_;
  std::int64_t num_exchanges_ = 0;
  bool is_closed_ = false;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_group_on(std::int32_t rank, std::int32_t num_ranks,
                                                 const MakeCommDevice& make_device,
                                                 const Bootstrap& bootstrap,
                                                 const NcclOptions& options) {
  return std::make_unique<NcclGroup>(rank, num_ranks, make_device, bootstrap, options);
}

}  // namespace magi::comm

namespace magi {

std::unique_ptr<Communicator> make_nccl_group(std::int32_t rank, std::int32_t num_ranks,
                                              std::int32_t device, const Bootstrap& bootstrap,
                                              const NcclOptions& options) {
  comm::check_group_size(rank, num_ranks, {.deadline = options.deadline});
  if (options.max_ctas < 0) throw invalid("max_ctas", options.max_ctas, "0 or more");
  if (!bootstrap) throw invalid("bootstrap", "empty", "a function");
  return comm::make_nccl_group_on(
      rank, num_ranks, [device] { return comm::make_comm_device(device); }, bootstrap, options);
}

}  // namespace magi
