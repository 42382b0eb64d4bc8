// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "base/check.hpp"
#include "comm/rows/abort_group.hpp"
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
    self.message = text_or_short(error.what());
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

/// The size of callers who know no options.
constexpr std::size_t kLeastSize = offsetof(magi_byte_exchange, options);

std::int32_t start_bytes(void* context, const magi_byte_exchange* args, void* stream,
                         void** exchange) {
  return guarded(context, [&](Communicator& group) {
    if (args->struct_size < kLeastSize) {
      throw invalid("args.struct_size", args->struct_size, std::to_string(kLeastSize) + " or more");
    }
    const bool has_options = args->struct_size >= sizeof(magi_byte_exchange);
    const auto num_ranks = static_cast<std::size_t>(group.num_ranks());
    *exchange = group
                    .start_bytes({.send = args->send,
                                  .receive = args->receive,
                                  .send_bytes = {args->send_bytes, num_ranks},
                                  .receive_bytes = {args->receive_bytes, num_ranks},
                                  .device = args->device,
                                  .kind = static_cast<ExchangeKind>(args->kind),
                                  .tag = {.plan_digest = args->plan_digest,
                                          .stage = args->stage,
                                          .options = has_options ? args->options : 0},
                                  .content = args->content},
                                 stream)
                    .release();
  });
}

std::int32_t wait(void* context, void* exchange) {
  return guarded(context,
                 [&](Communicator&) { static_cast<PendingExchange*>(exchange)->wait_sync(); });
}

void release(void*, void* exchange) { delete static_cast<PendingExchange*>(exchange); }

void abort_group(void* context, const char* reason) {
  magi::abort_group(*exported(context).communicator,
                    reason != nullptr ? reason : "no reason given");
}

std::int32_t close_group(void* context) {
  return guarded(context, [](Communicator& group) { group.close_sync(); });
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
  magi_comm_vtable vtable{
      .struct_size = sizeof(magi_comm_vtable),
      .rank = group.rank(),
      .num_ranks = group.num_ranks(),
      .backend = group.backend(),
      .features = MAGI_COMM_COMPARES_EXCHANGES |
                  (group.has_device_exchange() ? MAGI_COMM_MOVES_DEVICE_MEMORY : 0),
      .allgather = allgather,
      .start_bytes = start_bytes,
      .wait = wait,
      .release = release,
      .abort = abort_group,
      .close = close_group,
      .destroy = destroy,
      .last_error = last_error};
  vtable.context = std::make_unique<Exported>(Exported{std::move(communicator), {}, 0}).release();
  return vtable;
}

}  // namespace magi
