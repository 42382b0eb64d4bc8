// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "magi/device_allocator.hpp"
#include "magi/error.hpp"
#include "magi/exchange.hpp"
#include "magi/tensor.hpp"

struct magi_comm_vtable;

namespace magi {

/// The purpose of an exchange. The numbers are those of magi/comm_vtable.h.
enum class ExchangeKind : std::int32_t {
  Cast = 0,  ///< owned rows go to the ranks that need them
  Sum = 1,   ///< needed rows (partials) are added to their owners' rows, in rank order
  LseMerge =
      2,      ///< (out, lse) partials are merged into their owners' by log-sum-exp, in rank order
  Other = 3,  ///< rows go as in a cast; neither they nor the call are counted
};

/// Names a transfer in messages and keeps ranks in step.
struct ExchangeTag {
  std::uint64_t plan_digest = 0;
  std::int32_t stage = 0;
  std::uint64_t options = 0;  ///< what a call is given besides the plan; 0: not known
};

/// Bytes of every rank for every rank, in host or device memory.
struct ByteExchange {
  const void* send = nullptr;                   ///< parts for rank 0, 1, ... without gaps
  void* receive = nullptr;                      ///< parts from rank 0, 1, ... without gaps
  std::span<const std::int64_t> send_bytes;     ///< [num_ranks]
  std::span<const std::int64_t> receive_bytes;  ///< [num_ranks]
  std::int32_t device = kCpuDevice;             ///< CUDA ordinal of both buffers, or kCpuDevice
  ExchangeKind kind = ExchangeKind::Other;
  ExchangeTag tag = {};
  std::uint64_t content = 0;  ///< what the bytes mean; compared between ranks in host memory
};

/// Bytes that went out of this rank so far.
struct CommCounters {
  std::vector<std::int64_t> bytes_to_peer;  ///< [num_ranks], payload only
  std::int64_t messages = 0;
  std::int64_t casts = 0;
  std::int64_t reduces = 0;
};

/// An exchange under way. The memory it was started with must live until wait_sync returns or
/// throws. Exchanges may be waited for in any order. To destroy one in host memory that is not
/// complete ends the group, as abort does.
class PendingExchange {
 public:
  virtual ~PendingExchange() = default;
  /// Blocks until the exchange is complete on this rank; in device memory enqueues what is left to
  /// do on the stream it was started with. Throws CommError on deadline, a dead peer or abort.
  virtual void wait_sync() = 0;
};

namespace comm {
class RowExchanger;
struct ExchangerUse;
}  // namespace comm

/// A group of ranks that exchange rows. One object per rank; collective calls come in the same
/// order on all ranks, and calls of one object and of what was made with it from one thread at a
/// time, but for abort. A transport moves bytes; what becomes of rows is the same over each of
/// them.
class Communicator {
 public:
  Communicator();
  virtual ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual std::int32_t rank() const = 0;
  virtual std::int32_t num_ranks() const = 0;
  virtual const char* backend() const = 0;

  /// Everyone's bytes in rank order; sizes may differ.
  virtual std::vector<std::vector<std::byte>> allgather_sync(std::span<const std::byte> bytes) = 0;

  /// Moves owned rows of inputs[i] to needed rows of outputs[i], for all i at once. Collective.
  /// Tensors are [rows, ...] with contiguous rows beyond axis 0 or strided heads; all tensors of a
  /// call share the exchange and lie in host memory or on one GPU, whose work is enqueued on
  /// `stream` (a cudaStream_t). Throws InvalidArgument before anything is sent.
  std::unique_ptr<PendingExchange> group_cast(std::span<const TensorView> inputs,
                                              std::span<const TensorView> outputs,
                                              const RowExchange& rows, ExchangeTag tag,
                                              void* stream = nullptr);
  /// Moves needed rows of inputs[i] (partials) to owned rows of outputs[i]. Sum: tensors of one
  /// data type or input types narrower than the output's. LseMerge: inputs and outputs are {out,
  /// lse} pairs.
  std::unique_ptr<PendingExchange> group_reduce(std::span<const TensorView> inputs,
                                                std::span<const TensorView> outputs,
                                                const RowExchange& rows, ExchangeKind kind,
                                                ExchangeTag tag, void* stream = nullptr);

  /// Starts an exchange of bytes; several may be under way. Collective. In device memory it is
  /// enqueued on `stream` (a cudaStream_t): what is enqueued there later sees the received bytes
  /// and may overwrite the sent ones; the host may wait for the other ranks' calls, not for a
  /// device; nothing is left to wait for, and the result may be null. Throws InvalidArgument where
  /// the group does not move such memory.
  std::unique_ptr<PendingExchange> start_bytes(const ByteExchange& exchange,
                                               void* stream = nullptr);
  /// Whether the group moves device memory.
  virtual bool has_device_exchange() const { return false; }
  /// Whether exchanges of device memory may be captured in graphs, which all ranks replay alike.
  virtual bool is_capturable() const { return false; }

  /// Whether the first call of a plan on a GPU compares the plan with the other ranks', so that
  /// nobody has to before.
  virtual bool compares_plans() const { return false; }

  /// Wakes every rank that waits in this group with CommFailure::Aborted; the group is unusable
  /// after. May be called from any thread.
  virtual void abort(const std::string& reason) noexcept = 0;
  /// Throws the group's failure where this rank knows of one; local.
  virtual void check() const {}
  /// Counts of what was sent so far.
  const CommCounters& counters() const;
  /// Collective, orderly end: waits for the others, then releases what is shared. The destructor is
  /// local and silent.
  virtual void close_sync() = 0;

  /// The group's exchanger of rows for host memory (kCpuDevice) or a GPU; made at the first call.
  /// Its device memory comes from the library's pool.
  comm::RowExchanger& row_exchanger(std::int32_t device);
  /// An exchanger of the group's own that moves rows itself; null where it moves bytes alone. See
  /// comm::make_row_exchanger.
  virtual std::unique_ptr<comm::RowExchanger> make_exchanger(std::int32_t device,
                                                             const DeviceAllocator& allocator,
                                                             const comm::ExchangerUse& use);

 protected:
  /// Counts an exchange of kind Cast, Sum or LseMerge; bytes of the own rank do not count.
  void count(ExchangeKind kind, std::span<const std::int64_t> bytes_to_peer);
  /// start_bytes with arguments that have been checked.
  virtual std::unique_ptr<PendingExchange> start_checked(const ByteExchange& exchange,
                                                         void* stream) = 0;

 private:
  mutable CommCounters counters_;
  std::map<std::int32_t, std::shared_ptr<comm::RowExchanger>> exchangers_;  ///< by device
};

struct CommOptions {
  /// A wait ends this long after rows moved last on this rank. 1 ms to 2^40 ms (34 years).
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

/// The ranks of `base`, each with a GPU of one host, which write rows straight into each other's
/// memory; host memory moves through `base`, which also starts the group. Ranks are processes with
/// a GPU each, or threads of one process, which may share GPUs. Collective. Throws CommError, on
/// all ranks alike, naming a rank that cannot take part: another host, a GPU given twice, no peer
/// access.
std::unique_ptr<Communicator> make_nvlink_group(std::shared_ptr<Communicator> base,
                                                std::int32_t device,
                                                const CommOptions& options = {});

/// A meeting of ranks on any machines over TCP: rank 0 listens at the first free one of the eight
/// ports from `port` on; the others know its host by `address`. No secret is asked for: the ports
/// must be out of reach for strangers.
struct TcpPlace {
  std::string address;  ///< name or number of rank 0's host
  std::int32_t port = 0;
  std::string name = "magi";  ///< groups of other names pass by each other
};

/// A bootstrap among processes of any machines. Collective.
Bootstrap tcp_bootstrap(const TcpPlace& place, std::int32_t rank, std::int32_t num_ranks,
                        std::chrono::milliseconds deadline);

/// This process's place among those that torchrun or mpirun started, and a bootstrap among them.
struct Launch {
  std::int32_t rank = 0;
  std::int32_t num_ranks = 1;
  std::int32_t local_rank = 0;  ///< on this machine: its GPU, where each rank has one
  Bootstrap bootstrap;
};

/// Meets the other ranks of the launch: over TCP at MASTER_ADDR and MASTER_PORT, or without these
/// on one machine through local_bootstrap. Nothing where no launcher started the process.
/// Collective. Throws InvalidArgument naming a variable that is missing, such as WORLD_SIZE where
/// RANK is set, or does not parse.
std::optional<Launch> join_launch(std::chrono::milliseconds deadline);

struct NcclOptions {
  /// A wait ends this long after this rank's GPU has come to an exchange that does not end. 1 ms to
  /// 2^40 ms.
  std::chrono::milliseconds deadline = std::chrono::seconds(100);
  /// The most multiprocessors that carry an exchange; 0: as NCCL chooses.
  std::int32_t max_ctas = 0;
  /// Path of the library; empty: the one that the process has loaded already, else libnccl.so.2.
  std::string library = {};
};

/// Ranks with a GPU each, on any machines, over NCCL's sends and receives; NCCL is opened when the
/// group is made, not linked. Moves device memory alone. The bootstrap is called while the group is
/// made, in allgather_sync and in close_sync. Collective. Throws CommError naming the rank that
/// cannot join, InvalidArgument where the build has no CUDA.
std::unique_ptr<Communicator> make_nccl_group(std::int32_t rank, std::int32_t num_ranks,
                                              std::int32_t device, const Bootstrap& bootstrap,
                                              const NcclOptions& options = {});

/// A group whose functions the caller supplies (magi/comm_vtable.h); takes over the context. Throws
/// InvalidArgument when the table is incomplete.
std::unique_ptr<Communicator> make_vtable_group(const ::magi_comm_vtable& vtable);

/// Throws CommError(PlanMismatch) naming the ranks whose digest differs from rank 0's. Collective.
void check_plan_digest_sync(Communicator& communicator, std::uint64_t digest);

}  // namespace magi
