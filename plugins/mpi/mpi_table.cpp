// SPDX-License-Identifier: Apache-2.0
// The C table over a group of MPI ranks.
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>

#include "magi/magi_mpi.h"
#include "mpi/mpi_group.hpp"

namespace magi::mpi {
namespace {

Group& group(void* context) { return *static_cast<Group*>(context); }

/// Clocks count in nanoseconds: from 292 years on a wait would end at once.
constexpr std::int64_t kLongestDeadlineMs = std::int64_t{1} << 40;

thread_local std::string create_error;

std::int32_t refuse(const std::string& text) {
  create_error = text;
  return MAGI_VTABLE_INVALID_ARGUMENT;
}

/// Parts of equal sizes for every rank.
std::int32_t exchange_sync(Group& self, const void* send, void* receive,
                           const std::vector<std::int64_t>& send_bytes,
                           const std::vector<std::int64_t>& receive_bytes) {
  const magi_byte_exchange exchange{.struct_size = sizeof(magi_byte_exchange),
                                    .send = send,
                                    .receive = receive,
                                    .send_bytes = send_bytes.data(),
                                    .receive_bytes = receive_bytes.data(),
                                    .device = -1,
                                    .kind = MAGI_EXCHANGE_OTHER,
                                    .plan_digest = 0,
                                    .content = 0,
                                    .stage = 0,
                                    .options = 0};
  Transfers transfers;
  std::int32_t status = self.start(exchange, transfers);
  if (status == MAGI_VTABLE_OK) status = self.wait(transfers);
  self.drop(transfers);
  return status;
}

/// `bytes` once for every rank.
std::vector<std::byte> repeated(const void* bytes, std::size_t num_bytes, std::size_t count) {
  const auto* begin = static_cast<const std::byte*>(bytes);
  std::vector<std::byte> all;
  all.reserve(num_bytes * count);
  for (std::size_t i = 0; i < count; ++i) all.insert(all.end(), begin, begin + num_bytes);
  return all;
}

std::int32_t gather(Group& self, const void* bytes, std::size_t num_bytes, magi_gather_sink sink,
                    void* sink_context) {
  const auto count = static_cast<std::size_t>(self.num_ranks());
  const auto own = static_cast<std::int64_t>(num_bytes);
  const std::vector<std::int64_t> own_sizes(count, own);
  const std::vector<std::int64_t> words(count, sizeof(std::int64_t));
  std::vector<std::int64_t> sizes(count);
  std::int32_t status = exchange_sync(self, own_sizes.data(), sizes.data(), words, words);
  if (status != MAGI_VTABLE_OK) return status;
  std::size_t total = 0;
  for (const std::int64_t size : sizes) total += static_cast<std::size_t>(size);
  const std::vector<std::byte> send = repeated(bytes, num_bytes, count);
  std::vector<std::byte> received(total);
  status = exchange_sync(self, send.data(), received.data(), own_sizes, sizes);
  if (status != MAGI_VTABLE_OK) return status;
  const std::byte* part = received.data();
  for (std::size_t peer = 0; peer < count; ++peer) {
    sink(sink_context, static_cast<std::int32_t>(peer), part,
         static_cast<std::size_t>(sizes[peer]));
    part += sizes[peer];
  }
  return MAGI_VTABLE_OK;
}

/// Nothing throws across the table: only memory may run out.
template <typename Call>
std::int32_t guarded(Call call) noexcept {
  try {
    return call();
  } catch (const std::exception&) {
    return MAGI_VTABLE_INTERNAL_ERROR;
  }
}

std::int32_t allgather(void* context, const void* bytes, std::size_t num_bytes,
                       magi_gather_sink sink, void* sink_context) {
  return guarded([&] { return gather(group(context), bytes, num_bytes, sink, sink_context); });
}

std::int32_t start_bytes(void* context, const magi_byte_exchange* args, void* /*stream*/,
                         void** exchange) {
  return guarded([&] {
    auto transfers = std::make_unique<Transfers>();
    const std::int32_t status = group(context).start(*args, *transfers);
    if (status == MAGI_VTABLE_OK) {
      *exchange = transfers.release();
    } else {
      group(context).drop(*transfers);
    }
    return status;
  });
}

std::int32_t wait(void* context, void* exchange) {
  return guarded([&] { return group(context).wait(*static_cast<Transfers*>(exchange)); });
}

void release(void* context, void* exchange) {
  const std::unique_ptr<Transfers> transfers(static_cast<Transfers*>(exchange));
  group(context).drop(*transfers);
}

void abort(void* context, const char* reason) {
  // Without memory for the reason the others end at their deadline.
  static_cast<void>(guarded([&] {
    group(context).abort(reason != nullptr ? reason : "no reason given");
    return MAGI_VTABLE_OK;
  }));
}

std::int32_t close(void* context) {
  return guarded([&] {
    const std::int32_t status = gather(
        group(context), nullptr, 0, [](void*, std::int32_t, const void*, std::size_t) {}, nullptr);
    return status == MAGI_VTABLE_OK ? group(context).close() : status;
  });
}

void destroy(void* context) { delete static_cast<Group*>(context); }

const char* last_error(void* context, std::int32_t* failure) {
  *failure = group(context).failure();
  return group(context).failure() != 0 ? group(context).message() : "host memory ran out";
}

void finalize_at_exit() {
  int is_over = 0;
  MPI_Finalized(&is_over);
  if (is_over == 0 && are_all_closed()) MPI_Finalize();
}

/// Empty, or why MPI cannot be used.
std::string begin_mpi() {
  int is_begun = 0, level = MPI_THREAD_SINGLE;
  MPI_Initialized(&is_begun);
  if (is_begun != 0) {
    MPI_Query_thread(&level);
  } else {
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level) != MPI_SUCCESS) {
      return "MPI cannot be initialised";
    }
    std::atexit(finalize_at_exit);
  }
  if (level >= MPI_THREAD_SERIALIZED) return "";
  return "the thread level of MPI is " + std::to_string(level) +
         "; allowed: " + std::to_string(MPI_THREAD_SERIALIZED) + " (MPI_THREAD_SERIALIZED) or more";
}

}  // namespace
}  // namespace magi::mpi

int32_t magi_mpi_group_create(int32_t communicator, int64_t deadline_ms, magi_comm_vtable* vtable) {
  using namespace magi::mpi;
  if (vtable == nullptr) return refuse("vtable is null; allowed: an address");
  if (vtable->struct_size != sizeof(magi_comm_vtable)) {
    return refuse("vtable.struct_size is " + std::to_string(vtable->struct_size) +
                  "; allowed: " + std::to_string(sizeof(magi_comm_vtable)));
  }
  if (deadline_ms < 1 || deadline_ms > kLongestDeadlineMs) {
    return refuse("deadline_ms is " + std::to_string(deadline_ms) + "; allowed: 1 to 2^40");
  }
  if (const std::string reason = begin_mpi(); !reason.empty()) return refuse(reason);
  const MPI_Comm given =
      communicator == MAGI_MPI_WORLD ? MPI_COMM_WORLD : MPI_Comm_f2c(communicator);
  if (given == MPI_COMM_NULL) {
    return refuse("communicator is " + std::to_string(communicator) +
                  "; allowed: MAGI_MPI_WORLD or what MPI_Comm_c2f gives");
  }
  auto self = std::make_unique<Group>(given, std::chrono::milliseconds(deadline_ms));
  *vtable = {.struct_size = sizeof(magi_comm_vtable),
             .context = nullptr,
             .rank = self->rank(),
             .num_ranks = self->num_ranks(),
             .backend = "mpi",
             .features = 0,
             .allgather = allgather,
             .start_bytes = start_bytes,
             .wait = wait,
             .release = release,
             .abort = abort,
             .close = close,
             .destroy = destroy,
             .last_error = last_error};
  vtable->context = self.release();
  return MAGI_VTABLE_OK;
}

const char* magi_mpi_last_error(void) { return magi::mpi::create_error.c_str(); }
