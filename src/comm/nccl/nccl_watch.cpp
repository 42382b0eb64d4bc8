// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_watch.hpp"

#include <utility>

#include "base/words.hpp"
#include "comm/net/group_log.hpp"
#include "comm/rows/exchange_kind.hpp"

namespace magi::comm {
namespace {

using Clock = std::chrono::steady_clock;

/// The interval at which exchanges and NCCL are looked at.
constexpr std::chrono::milliseconds kTick{50};
/// A rank that ended in order may have sent all that this one waits for: its exchanges get so long
/// to end by themselves.
constexpr std::chrono::milliseconds kGrace{1000};

}  // namespace

std::string NcclWatch::describe(const NcclFlight& flight) const {
  std::string names;
  for (const std::int32_t peer : flight.peers) {
    names += (names.empty() ? "" : ", ") + alarms_->name_of(peer);
  }
  return names + " in stage " + std::to_string(flight.tag.stage) + " of " + kind_name(flight.kind) +
         " " + std::to_string(flight.sequence) + ", plan " + hex(flight.tag.plan_digest);
}

NcclWatch::NcclWatch(std::shared_ptr<NcclComm> comm, std::shared_ptr<const CommDevice> device,
                     std::unique_ptr<FailureChannel> alarms, std::int32_t rank,
                     std::chrono::milliseconds deadline)
    : comm_(std::move(comm)),
      device_(std::move(device)),
      alarms_(std::move(alarms)),
      rank_(rank),
      deadline_(deadline),
      thread_([this] { run(); }) {}

NcclWatch::~NcclWatch() { stop(); }

bool NcclWatch::fail(const CommError& error) noexcept {
  const bool is_first = failure_.set(error);
  wake();
  return is_first;
}

void NcclWatch::wake() noexcept {
  { const std::lock_guard lock(mutex_); }  // who looked before the failure was there waits by now
  changed_.notify_all();
  alarms_->wake();
}

void NcclWatch::fail_as_bootstrap(const CommError& error) noexcept {
  if (error.failure() == CommFailure::PeerDied) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, 4 * kTick, [this] { return failure_.is_set(); });
  }
  fail(error);
}

void NcclWatch::fail_as_found(const CommError& error) noexcept {
  if (fail(error)) log_found_failure(rank_, error);
}

bool NcclWatch::fail_with(const char* what, const char* reason, CommFailure failure) noexcept {
  const bool is_first = failure_.set(rank_, what, reason, failure);
  wake();
  return is_first;
}

void NcclWatch::abort(const std::string& reason) noexcept {
  if (fail_with(" aborted: ", reason.c_str(), CommFailure::Aborted)) log_abort(rank_, reason);
}

void NcclWatch::add(NcclFlight flight) {
  if (flight.end == nullptr) return;
  const std::lock_guard lock(mutex_);
  flights_.push_back(std::move(flight));
}

void NcclWatch::drain_sync() {
  alarms_->wake();  // a look at the exchanges now
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return flights_.empty() || failure_.is_set(); });
}

void NcclWatch::leave() noexcept {
  stop();
  if (!failure_.is_set()) alarms_->leave();
}

void NcclWatch::stop() noexcept {
  if (!thread_.joinable()) return;
  is_stopping_.store(true, std::memory_order_release);
  alarms_->wake();
  thread_.join();
}

void NcclWatch::run() {
  try {
    device_->run_watch([this] {
      while (!is_stopping_.load(std::memory_order_acquire)) {
        if (const auto told = alarms_->listen(kTick)) fail_as_found(*told);
        inspect();
      }
      inspect();
    });
  } catch (const std::exception& error) {
    if (fail_with(" cannot watch its exchanges: ", error.what(), CommFailure::System)) {
      log_abort(rank_, error.what());
    }
    end_group();
  }
}

void NcclWatch::inspect() {
  if (!failure_.is_set()) {
    std::optional<CommError> found = comm_->async_error();
    if (!found) found = inspect_flights();
    if (found) fail_as_found(*found);
  }
  if (failure_.is_set()) end_group();
}

std::optional<CommError> NcclWatch::inspect_flights() {
  const std::lock_guard lock(mutex_);
  while (!flights_.empty() && flights_.front().end->is_reached()) flights_.pop_front();
  if (flights_.empty()) {
    changed_.notify_all();
    return {};
  }
  NcclFlight& first = flights_.front();
  const auto now = Clock::now();
  if (!first.deadline && first.begin->is_reached()) first.deadline = now + deadline_;
  if (!first.deadline || now < *first.deadline) return {};
  return CommError(alarms_->name_of(rank_) + " waited " + std::to_string(deadline_.count()) +
                       " ms for " + describe(first),
                   CommFailure::Timeout);
}

void NcclWatch::end_group() {
  if (std::exchange(has_ended_, true)) return;
  const std::optional<CommError> failure = failure_.get();
  alarms_->report(*failure);
  try {
    if (failure->failure() == CommFailure::PeerDied) wait_for_last_flights();
  } catch (const CudaError&) {
    // A device that failed ends no flight.
  }
  comm_->abort();
  const std::lock_guard lock(mutex_);
  flights_.clear();
}

void NcclWatch::wait_for_last_flights() {
  const auto end = Clock::now() + kGrace;
  const auto has_flights = [this] {
    const std::lock_guard lock(mutex_);
    while (!flights_.empty() && flights_.front().end->is_reached()) flights_.pop_front();
    return !flights_.empty();
  };
  while (has_flights() && Clock::now() < end) std::this_thread::sleep_for(kTick / 10);
}

}  // namespace magi::comm
