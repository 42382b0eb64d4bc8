// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "magi/error.hpp"
#include "magi/exchange.hpp"
#include "magi/tensor.hpp"

struct magi_comm_vtable;

namespace magi {

enum class ReduceOp : std::int32_t {
  Sum,       ///< owner row += every partial row, partials added in rank order
  LseMerge,  ///< (out, lse) pairs merged by log-sum-exp, in rank order
};

/// Names a transfer in messages and keeps ranks in step.
struct ExchangeTag {
  std::uint64_t plan_digest = 0;
  std::int32_t wave = 0;
};

/// What bytes in device memory are exchanged for. Casts and reduces are counted, and their bytes.
enum class ExchangePurpose : std::int32_t { Cast = 0, Reduce = 1, Other = 3 };

/// Bytes of every rank for every rank, in device memory.
struct DeviceExchange {
  const void* send = nullptr;                   ///< parts for rank 0, 1, ... without gaps
  void* receive = nullptr;                      ///< parts from rank 0, 1, ... without gaps
  std::span<const std::int64_t> send_bytes;     ///< [num_ranks]
  std::span<const std::int64_t> receive_bytes;  ///< [num_ranks]
  std::int32_t device = 0;                      ///< CUDA ordinal of both buffers
  ExchangePurpose purpose = ExchangePurpose::Other;
  ExchangeTag tag;
};

/// Bytes that went out of this rank so far.
struct CommCounters {
  std::vector<std::int64_t> bytes_to_peer;  ///< [num_ranks], payload only
  std::int64_t messages = 0;
  std::int64_t casts = 0;
  std::int64_t reduces = 0;
};

/// An exchange under way. The tensors it was started with must live until wait_sync returns or
/// throws. Exchanges may be waited for in any order. To destroy one that is not complete ends the
/// group, as abort does.
class PendingExchange {
 public:
  virtual ~PendingExchange() = default;
  /// Blocks until the exchange is complete on this rank. Throws CommError on deadline, a dead peer
  /// or abort.
  virtual void wait_sync() = 0;
};

/// A group of ranks that exchange rows. One object per rank; collective calls come in the same
/// order on all ranks. Tensors are [rows, ...] with contiguous rows beyond axis 0 or strided heads;
/// all tensors of a call share the exchange.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual std::int32_t rank() const = 0;
  virtual std::int32_t num_ranks() const = 0;
  virtual const char* backend() const = 0;

  /// Everyone's bytes in rank order; sizes may differ.
  virtual std::vector<std::vector<std::byte>> allgather_sync(std::span<const std::byte> bytes) = 0;

  /// owned rows of inputs[i] -> needed rows of outputs[i], for all i at once.
  virtual std::unique_ptr<PendingExchange> group_cast(std::span<const TensorView> inputs,
                                                      std::span<const TensorView> outputs,
                                                      const RowExchange& rows, ExchangeTag tag) = 0;
  /// needed rows of inputs[i] (partials) -> owned rows of outputs[i]. Sum: tensors of one data type
  /// or input types narrower than the output's. LseMerge: inputs and outputs are {out, lse} pairs.
  virtual std::unique_ptr<PendingExchange> group_reduce(std::span<const TensorView> inputs,
                                                        std::span<const TensorView> outputs,
                                                        const RowExchange& rows, ReduceOp op,
                                                        ExchangeTag tag) = 0;

  /// Whether the group moves device memory.
  virtual bool has_device_exchange() const { return false; }
  /// Enqueues an exchange on `stream` (a cudaStream_t): what is enqueued there later sees the
  /// received bytes and may overwrite the sent ones. The host may wait for the other ranks' calls,
  /// not for a device. Collective. Throws InvalidArgument where the group moves no device memory.
  virtual void all_to_all_v(const DeviceExchange& exchange, void* stream);

  /// Wakes every rank that waits in this group with CommFailure::Aborted; the group is unusable
  /// after. May be called from any thread.
  virtual void abort(const std::string& reason) noexcept = 0;
  virtual CommCounters counters() const = 0;
  /// Collective, orderly end: waits for the others, then releases what is shared. The destructor is
  /// local and silent.
  virtual void close_sync() = 0;
};

struct CommOptions {
  /// A wait ends this long after rows moved last on this rank.
  std::chrono::milliseconds deadline = std::chrono::seconds(100);
  /// Staging for what a rank sends, shared out among its peers when it first sends more than a few
  /// kB. Grows with the transfers, up to 64 MiB per peer; larger ones go through it in pieces.
  std::size_t window_bytes = std::size_t{4} << 20;
};

/// Ranks as threads of this process: element r belongs to rank r. Moves device memory too where the
/// library was built with CUDA: ranks may share a GPU or have one each.
std::vector<std::unique_ptr<Communicator>> make_thread_group(std::int32_t num_ranks,
                                                             const CommOptions& options = {});

/// Gives every rank's bytes to every rank, in rank order: the one thing a group needs to start.
using Bootstrap = std::function<std::vector<std::vector<std::byte>>(std::span<const std::byte>)>;

/// Ranks as processes of one machine over POSIX shared memory and futexes. Collective.
std::unique_ptr<Communicator> make_shm_group(std::int32_t rank, std::int32_t num_ranks,
                                             const Bootstrap& bootstrap,
                                             const CommOptions& options = {});

/// A bootstrap among processes of one machine and one user that agree on `name`, over an abstract
/// Unix socket held by rank 0.
Bootstrap local_bootstrap(const std::string& name, std::int32_t rank, std::int32_t num_ranks,
                          std::chrono::milliseconds deadline);

/// A group whose functions the caller supplies (magi/comm_vtable.h); takes over the context. Throws
/// InvalidArgument when the table is incomplete.
std::unique_ptr<Communicator> make_vtable_group(const ::magi_comm_vtable& vtable);

/// A communicator as such a table; its destroy function ends the communicator.
::magi_comm_vtable make_comm_vtable(std::unique_ptr<Communicator> communicator);

/// Throws CommError(PlanMismatch) naming the ranks whose digest differs from rank 0's. Collective.
void check_plan_digest_sync(Communicator& communicator, std::uint64_t digest);

}  // namespace magi
