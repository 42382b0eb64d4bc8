// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "comm/vtable_convert.hpp"
#include "magi/comm.hpp"
#include "magi/comm_vtable.h"

// A communicator as a table of C functions.
namespace magi {
namespace {

/// The context of an exported table.
struct Exported {
  std::unique_ptr<Communicator> communicator;
  std::string message;
  std::int32_t failure = 0;
};

Exported& exported(void* context) { return *static_cast<Exported*>(context); }

template <typename Call>
std::int32_t guarded(void* context, Call call) noexcept {
  Exported& self = exported(context);
  const auto keep = [&self](const std::exception& error, std::int32_t failure,
                            std::int32_t status) {
    self.message = error.what();
    self.failure = failure;
    return status;
  };
  try {
    call(*self.communicator);
    return MAGI_VTABLE_OK;
  } catch (const InvalidArgument& error) {
    return keep(error, 0, MAGI_VTABLE_INVALID_ARGUMENT);
  } catch (const CudaError& error) {
    return keep(error, error.code(), MAGI_VTABLE_CUDA_ERROR);
  } catch (const CommError& error) {
    return keep(error, static_cast<std::int32_t>(error.failure()), MAGI_VTABLE_COMM_ERROR);
  } catch (const std::exception& error) {
    return keep(error, 0, MAGI_VTABLE_INTERNAL_ERROR);
  }
}

std::int32_t allgather(void* context, const void* bytes, std::size_t num_bytes,
                       magi_gather_sink sink, void* sink_context) {
  return guarded(context, [&](Communicator& group) {
    const auto all = group.allgather_sync({static_cast<const std::byte*>(bytes), num_bytes});
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      sink(sink_context, static_cast<std::int32_t>(rank), all[rank].data(), all[rank].size());
    }
  });
}

std::int32_t start(void* context, const magi_exchange_args* args, void** exchange) {
  return guarded(context, [&](Communicator& group) {
    if (args->struct_size < sizeof(magi_exchange_args)) {
      throw invalid("args.struct_size", args->struct_size,
                    std::to_string(sizeof(magi_exchange_args)) + " or more");
    }
    const auto inputs = comm::from_c(args->inputs, args->num_tensors);
    const auto outputs = comm::from_c(args->outputs, args->num_tensors);
    const RowExchange rows{.owned = comm::from_c(args->owned, args->num_owned),
                           .needed = comm::from_c(args->needed, args->num_needed)};
    const ExchangeTag tag{.plan_digest = args->plan_digest, .wave = args->wave};
    switch (args->kind) {
      case MAGI_EXCHANGE_CAST:
        *exchange = group.group_cast(inputs, outputs, rows, tag).release();
        return;
      case MAGI_EXCHANGE_SUM:
        *exchange = group.group_reduce(inputs, outputs, rows, ReduceOp::Sum, tag).release();
        return;
      case MAGI_EXCHANGE_LSE_MERGE:
        *exchange = group.group_reduce(inputs, outputs, rows, ReduceOp::LseMerge, tag).release();
        return;
      default:
        throw invalid("args.kind", args->kind, "0 (cast), 1 (sum) or 2 (lse merge)");
    }
  });
}

std::int32_t wait(void* context, void* exchange) {
  return guarded(context,
                 [&](Communicator&) { static_cast<PendingExchange*>(exchange)->wait_sync(); });
}

void release(void*, void* exchange) { delete static_cast<PendingExchange*>(exchange); }

void abort_group(void* context, const char* reason) {
  exported(context).communicator->abort(reason != nullptr ? reason : "no reason given");
}

std::int32_t counters(void* context, magi_exchange_counters* filled) {
  return guarded(context, [&](Communicator& group) {
    const CommCounters counted = group.counters();
    std::copy(counted.bytes_to_peer.begin(), counted.bytes_to_peer.end(), filled->bytes_to_peer);
    filled->messages = counted.messages;
    filled->casts = counted.casts;
    filled->reduces = counted.reduces;
  });
}

std::int32_t close_group(void* context) {
  return guarded(context, [](Communicator& group) { group.close_sync(); });
}

std::int32_t all_to_all_v(void* context, const magi_all_to_all_args* args, void* stream) {
  return guarded(context, [&](Communicator& group) {
    if (args->struct_size < sizeof(magi_all_to_all_args)) {
      throw invalid("args.struct_size", args->struct_size,
                    std::to_string(sizeof(magi_all_to_all_args)) + " or more");
    }
    const auto num_ranks = static_cast<std::size_t>(group.num_ranks());
    group.all_to_all_v({.send = args->send,
                        .receive = args->receive,
                        .send_bytes = {args->send_bytes, num_ranks},
                        .receive_bytes = {args->receive_bytes, num_ranks},
                        .device = args->device,
                        .purpose = static_cast<ExchangePurpose>(args->kind),
                        .tag = {.plan_digest = args->plan_digest, .wave = args->wave}},
                       stream);
  });
}

void destroy(void* context) { delete static_cast<Exported*>(context); }

const char* last_error(void* context, std::int32_t* failure) {
  *failure = exported(context).failure;
  return exported(context).message.c_str();
}

}  // namespace

magi_comm_vtable make_comm_vtable(std::unique_ptr<Communicator> communicator) {
  MAGI_CHECK(communicator != nullptr);
  const Communicator& group = *communicator;
  magi_comm_vtable vtable{.struct_size = sizeof(magi_comm_vtable),
                          .rank = group.rank(),
                          .num_ranks = group.num_ranks(),
                          .backend = group.backend(),
                          .allgather = allgather,
                          .start = start,
                          .wait = wait,
                          .release = release,
                          .abort = abort_group,
                          .counters = counters,
                          .close = close_group,
                          .destroy = destroy,
                          .last_error = last_error,
                          .all_to_all_v = group.has_device_exchange() ? all_to_all_v : nullptr};
  vtable.context = std::make_unique<Exported>(Exported{std::move(communicator), {}, 0}).release();
  return vtable;
}

}  // namespace magi
