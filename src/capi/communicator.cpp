// SPDX-License-Identifier: Apache-2.0
#include "capi/handles.hpp"
#include "capi/outputs.hpp"
#include "comm/rows/abort_group.hpp"
#include "comm/rows/row_layout.hpp"
#include "magi/comm.hpp"

namespace magi::capi {
namespace {

CommOptions read_options(const magi_comm_options* options) {
  const magi_comm_options given = read_struct(options, "options");
  if (given.deadline_ms < 1) throw invalid("deadline_ms", given.deadline_ms, "1 or more");
  return {.deadline = std::chrono::milliseconds(given.deadline_ms),
          .window_bytes = given.window_bytes};
}

NcclOptions read_nccl_options(const magi_nccl_options* options) {
  const magi_nccl_options given = read_struct(options, "options");
  if (given.deadline_ms < 1) throw invalid("deadline_ms", given.deadline_ms, "1 or more");
  return {.deadline = std::chrono::milliseconds(given.deadline_ms),
          .max_ctas = given.max_ctas,
          .library = given.library != nullptr ? given.library : ""};
}

magi_bootstrap read_bootstrap(const magi_bootstrap* bootstrap) {
  const magi_bootstrap given = read_struct(bootstrap, "bootstrap");
  if (given.num_ranks < 1) throw invalid("bootstrap.num_ranks", given.num_ranks, "1 or more");
  if (given.allgather == nullptr) throw invalid("bootstrap.allgather", "null", "a function");
  return given;
}

/// A bootstrap of any sizes over the caller's all-gather of equal sizes: the sizes go first.
class CallbackBootstrap {
 public:
  explicit CallbackBootstrap(const magi_bootstrap& given)
      : given_(given), num_ranks_(static_cast<std::size_t>(given.num_ranks)) {}

  std::vector<std::vector<std::byte>> operator()(std::span<const std::byte> bytes) const {
    const std::uint64_t size = bytes.size();
    std::vector<std::uint64_t> sizes(num_ranks_);
    gather(&size, sizeof(size), sizes.data());
    const std::size_t largest = *std::max_element(sizes.begin(), sizes.end());
    std::vector<std::byte> padded(largest);
    std::copy(bytes.begin(), bytes.end(), padded.begin());
    std::vector<std::byte> all(largest * num_ranks_);
    if (largest > 0) gather(padded.data(), largest, all.data());
    std::vector<std::vector<std::byte>> result;
    for (std::size_t rank = 0; rank < num_ranks_; ++rank) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(rank * largest);
      result.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(sizes[rank]));
    }
    return result;
  }

 private:
  void gather(const void* bytes, std::size_t size_bytes, void* gathered) const {
    const std::int32_t status = given_.allgather(given_.context, bytes, size_bytes, gathered);
    if (status == 0) return;
    throw CommError("the bootstrap's allgather returned " + std::to_string(status) + "; allowed: 0",
                    CommFailure::System);
  }

  magi_bootstrap given_;
  std::size_t num_ranks_;
};

std::vector<PeerRows> read_records(const magi_peer_rows* table, std::int64_t count,
                                   const char* name) {
  std::vector<PeerRows> records;
  for (const magi_peer_rows& rows : read_array(table, count, name)) {
    records.push_back({rows.peer, rows.row, rows.num_rows});
  }
  return records;
}

/// A tensor without rank and data takes no part in the exchange on this rank.
std::vector<TensorView> read_tensors(const magi_tensor* tensors, std::int32_t count,
                                     const char* name) {
  std::vector<TensorView> views;
  for (const magi_tensor& tensor : read_array(tensors, count, name)) {
    const bool is_absent = tensor.rank == 0 && tensor.data == nullptr;
    views.push_back(is_absent ? TensorView{} : read_tensor(&tensor, name));
  }
  return views;
}

/// Throws InvalidArgument for outputs that lie on inputs or on each other, and for more tensors
/// than are compared.
void check_apart(const magi_exchange& exchange) {
  if (exchange.inputs.size() > comm::kMaxTensors) {
    throw invalid("args.num_tensors", exchange.inputs.size(),
                  "1 to " + std::to_string(comm::kMaxTensors));
  }
  std::vector<NamedTensor> written, read;
  for (const TensorView& output : exchange.outputs) written.push_back({"args.outputs", output});
  for (const TensorView& input : exchange.inputs) read.push_back({"args.inputs", input});
  check_outputs(written, read);
}

std::unique_ptr<PendingExchange> start(Communicator& communicator, const magi_exchange& exchange,
                                       const magi_exchange_args& args) {
  const ExchangeTag tag{.plan_digest = args.plan_digest, .stage = args.stage};
  const auto kind = static_cast<ExchangeKind>(args.kind);
  switch (kind) {
    case ExchangeKind::Cast:
      return communicator.group_cast(exchange.inputs, exchange.outputs, exchange.rows, tag,
                                     args.stream);
    case ExchangeKind::Sum:
    case ExchangeKind::LseMerge:
      return communicator.group_reduce(exchange.inputs, exchange.outputs, exchange.rows, kind, tag,
                                       args.stream);
    case ExchangeKind::Other:
      break;
  }
  throw invalid("args.kind", args.kind, "0 (cast), 1 (sum) or 2 (lse merge)");
}

}  // namespace
}  // namespace magi::capi

using namespace magi::capi;

void magi_comm_options_init(magi_comm_options* options) {
  const magi::CommOptions defaults;
  init_struct(options, magi_comm_options{.struct_size = sizeof(magi_comm_options),
                                         .deadline_ms = defaults.deadline.count(),
                                         .window_bytes = defaults.window_bytes});
}

void magi_communicator_destroy(magi_communicator* communicator) { delete communicator; }

magi_status magi_thread_group_create(int32_t num_ranks, const magi_comm_options* options,
                                     magi_communicator** communicators) {
  return guarded([&] {
    require(communicators, "communicators");
    std::vector<std::unique_ptr<magi_communicator>> handles;
    for (auto& communicator : magi::make_thread_group(num_ranks, read_options(options))) {
      handles.push_back(handle_of(std::move(communicator)));
    }
    for (size_t rank = 0; rank < handles.size(); ++rank) {
      communicators[rank] = handles[rank].release();
    }
  });
}

magi_status magi_shm_group_create(const magi_bootstrap* bootstrap, const magi_comm_options* options,
                                  magi_communicator** communicator) {
  return giving(communicator, "communicator", [&] {
    const magi_bootstrap given = read_bootstrap(bootstrap);
    return magi::make_shm_group(given.rank, given.num_ranks, CallbackBootstrap(given),
                                read_options(options));
  });
}

magi_status magi_shm_group_create_named(const char* name, int32_t rank, int32_t num_ranks,
                                        const magi_comm_options* options,
                                        magi_communicator** communicator) {
  return giving(communicator, "communicator", [&] {
    const magi::CommOptions given = read_options(options);
    const auto bootstrap =
        magi::local_bootstrap(&require(name, "name"), rank, num_ranks, given.deadline);
    return magi::make_shm_group(rank, num_ranks, bootstrap, given);
  });
}

magi_status magi_nvlink_group_create(const magi_communicator* base, int32_t device,
                                     const magi_comm_options* options,
                                     magi_communicator** communicator) {
  return giving(communicator, "communicator", [&] {
    return magi::make_nvlink_group(require(base, "base").communicator, device,
                                   read_options(options));
  });
}

void magi_nccl_options_init(magi_nccl_options* options) {
  const magi::NcclOptions defaults;
  init_struct(options, magi_nccl_options{.struct_size = sizeof(magi_nccl_options),
                                         .deadline_ms = defaults.deadline.count(),
                                         .max_ctas = defaults.max_ctas,
                                         .library = nullptr});
}

magi_status magi_nccl_group_create(const magi_bootstrap* bootstrap, int32_t device,
                                   const magi_nccl_options* options,
                                   magi_communicator** communicator) {
  return giving(communicator, "communicator", [&] {
    const magi_bootstrap given = read_bootstrap(bootstrap);
    return magi::make_nccl_group(given.rank, given.num_ranks, device, CallbackBootstrap(given),
                                 read_nccl_options(options));
  });
}

magi_status magi_communicator_from_vtable(const magi_comm_vtable* vtable,
                                          magi_communicator** communicator) {
  return giving(communicator, "communicator",
                [&] { return magi::make_vtable_group(require(vtable, "vtable")); });
}

magi_status magi_communicator_rank(const magi_communicator* communicator, int32_t* rank,
                                   int32_t* num_ranks) {
  return guarded([&] {
    const magi::Communicator& given = *require(communicator, "communicator").communicator;
    require(num_ranks, "num_ranks");
    require(rank, "rank") = given.rank();
    *num_ranks = given.num_ranks();
  });
}

const char* magi_communicator_backend(const magi_communicator* communicator) {
  return communicator == nullptr ? "" : communicator->communicator->backend();
}

magi_status magi_communicator_counters(const magi_communicator* communicator,
                                       magi_comm_counters* counters) {
  return guarded([&] {
    const auto counted = require(communicator, "communicator").communicator->counters();
    auto bytes = make_buffer(std::span<const int64_t>(counted.bytes_to_peer));
    write_struct(counters,
                 magi_comm_counters{.struct_size = sizeof(magi_comm_counters),
                                    .messages = counted.messages,
                                    .casts = counted.casts,
                                    .reduces = counted.reduces,
                                    .bytes_to_peer = bytes.get()},
                 "counters");
    static_cast<void>(bytes.release());
  });
}

magi_status magi_communicator_check(const magi_communicator* communicator) {
  return guarded([&] { require(communicator, "communicator").communicator->check(); });
}

magi_status magi_communicator_abort(magi_communicator* communicator, const char* reason) {
  return guarded(
      [&] { magi::abort_group(communicator_of(communicator), &require(reason, "reason")); });
}

magi_status magi_communicator_close_sync(magi_communicator* communicator) {
  return guarded([&] { communicator_of(communicator).close_sync(); });
}

magi_status magi_exchange_start(magi_communicator* communicator, const magi_exchange_args* args,
                                magi_exchange** exchange) {
  return giving(exchange, "exchange", [&] {
    const magi_exchange_args given = read_struct(args, "args");
    auto made = std::make_unique<magi_exchange>();
    made->communicator = require(communicator, "communicator").communicator;
    made->inputs = read_tensors(given.inputs, given.num_tensors, "args.inputs");
    made->outputs = read_tensors(given.outputs, given.num_tensors, "args.outputs");
    check_apart(*made);
    made->rows = {.owned = read_records(given.owned, given.num_owned, "args.owned"),
                  .needed = read_records(given.needed, given.num_needed, "args.needed")};
    made->pending = start(*made->communicator, *made, given);
    return made;
  });
}

magi_status magi_exchange_wait_sync(magi_exchange* exchange) {
  return guarded([&] { require(exchange, "exchange").pending->wait_sync(); });
}

void magi_exchange_destroy(magi_exchange* exchange) { delete exchange; }
