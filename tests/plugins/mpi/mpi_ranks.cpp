// SPDX-License-Identifier: Apache-2.0
// One rank of mpirun that uses the transport as the library does: mpi_ranks CASE. Exit code 1 and a
// sentence where something does not hold.
#include <chrono>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "magi/comm.hpp"
#include "magi/magi_mpi.h"

namespace magi::testing {
namespace {

void expect(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error("expected: " + what);
}

std::unique_ptr<Communicator> make_group(std::int64_t deadline_ms = 20000) {
  magi_comm_vtable table{};
  table.struct_size = sizeof table;
  expect(magi_mpi_group_create(MAGI_MPI_WORLD, deadline_ms, &table) == MAGI_VTABLE_OK,
         magi_mpi_last_error());
  return make_vtable_group(table);
}

CommError error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const CommError& error) {
    return error;
  }
  throw std::runtime_error("expected: a CommError");
}

void expect_text(const CommError& error, CommFailure failure, const std::string& text) {
  expect(error.failure() == failure, "failure " + std::to_string(static_cast<int>(failure)));
  expect(std::string(error.what()).find(text) != std::string::npos,
         "'" + text + "' in '" + error.what() + "'");
}

/// An exchange where rank a sends rank b `unit` * (1 + a + 2 b) ints of the value 100 a + b + salt;
/// every third pair sends nothing.
struct Round {
  std::vector<std::int64_t> send_bytes, receive_bytes;
  std::vector<std::int32_t> send, receive, wanted;
  std::unique_ptr<PendingExchange> pending;

  Round(Communicator& ranks, std::int64_t unit, std::int32_t salt) {
    const auto size = [&](std::int32_t from, std::int32_t to) {
      return (from + 2 * to) % 3 == 2 ? 0 : unit * (1 + from + 2 * to);
    };
    const auto fill = [&](std::vector<std::int32_t>& rows, std::int32_t from, std::int32_t to) {
      rows.insert(rows.end(), static_cast<std::size_t>(size(from, to)), 100 * from + to + salt);
    };
    const std::int32_t own = ranks.rank();
    for (std::int32_t peer = 0; peer < ranks.num_ranks(); ++peer) {
      send_bytes.push_back(4 * size(own, peer));
      receive_bytes.push_back(4 * size(peer, own));
      fill(send, own, peer);
      fill(wanted, peer, own);
    }
    receive.resize(wanted.size(), -1);
    pending = ranks.start_bytes({.send = send.data(),
                                 .receive = receive.data(),
                                 .send_bytes = send_bytes,
                                 .receive_bytes = receive_bytes});
  }
};

void run_exchanges() {
  const auto ranks = make_group();
  expect(ranks->num_ranks() == 3, "three ranks");
  expect(std::string(ranks->backend()) == "mpi", "its name");
  const std::vector<std::byte> own(static_cast<std::size_t>(5 * ranks->rank()), std::byte{7});
  const auto all = ranks->allgather_sync(own);
  for (std::size_t peer = 0; peer < 3; ++peer) {
    expect(all[peer] == std::vector<std::byte>(5 * peer, std::byte{7}), "sizes that differ");
  }
  std::vector<Round> rounds;
  std::int32_t salt = 0;
  for (const std::int64_t unit : {1, 1000, 300000})
    rounds.emplace_back(*ranks, unit, ++salt * 1000);
  for (std::size_t i = rounds.size(); i-- > 0;) rounds[i].pending->wait_sync();
  for (const Round& round : rounds) expect(round.receive == round.wanted, "bytes in their places");
  ranks->close_sync();
}

void run_abort() {
  const auto ranks = make_group();
  if (ranks->rank() == 1) ranks->abort("a test");
  const CommError error = error_of([&] { ranks->allgather_sync({}); });
  expect_text(error, CommFailure::Aborted, "rank 1 aborted: a test");
  expect_text(error_of([&] { ranks->close_sync(); }), CommFailure::Aborted, "rank 1 aborted");
}

void run_deadline() {
  const auto ranks = make_group(1000);
  if (ranks->rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  const std::byte own{1};
  const CommError error = error_of([&] { ranks->allgather_sync({&own, 1}); });
  expect(std::string(error.what()).find("waited 1000 ms for bytes to or from rank 2") !=
             std::string::npos,
         error.what());
}

void run_refusals() {
  magi_comm_vtable table{};
  const auto refused = [&](std::int64_t deadline_ms, magi_comm_vtable* given) {
    expect(
        magi_mpi_group_create(MAGI_MPI_WORLD, deadline_ms, given) == MAGI_VTABLE_INVALID_ARGUMENT,
        "a refusal");
    return std::string(magi_mpi_last_error());
  };
  expect(refused(1000, nullptr) == "vtable is null; allowed: an address", "no table");
  expect(refused(1000, &table).find("vtable.struct_size is 0; allowed: ") == 0, "no size");
  table.struct_size = sizeof table;
  expect(refused(0, &table) == "deadline_ms is 0; allowed: 1 to 2^40", "no deadline");
  expect(refused(std::numeric_limits<std::int64_t>::max(), &table) ==
             "deadline_ms is 9223372036854775807; allowed: 1 to 2^40",
         "a deadline beyond what clocks count");
  make_group()->close_sync();  // so that MPI begins and ends
}

/// The memory of an exchange that is dropped is gone: nothing is written there, and the group ends.
void run_dropped() {
  const auto ranks = make_group();
  const std::vector<std::int64_t> sizes{4, 4, 4};
  std::vector<std::int32_t> rows(3, 1), received(3, 0);
  auto pending = ranks->start_bytes({.send = rows.data(),
                                     .receive = received.data(),
                                     .send_bytes = sizes,
                                     .receive_bytes = sizes});
  const CommError error = error_of([&] {
    if (ranks->rank() == 0) pending.reset();
    const std::byte own{1};
    if (pending) pending->wait_sync();
    ranks->allgather_sync({&own, 1});
  });
  expect_text(error, CommFailure::Aborted,
              "rank 0 aborted: an exchange ended before its bytes were there");
}

int run(const std::string& name) {
  try {
    if (name == "exchanges") run_exchanges();
    if (name == "abort") run_abort();
    if (name == "deadline") run_deadline();
    if (name == "refusals") run_refusals();
    if (name == "dropped") run_dropped();
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  std::cout << "rank " << (rank != nullptr ? rank : "?") << " holds" << std::endl;
  // Of a group that failed, others may still have to hear.
  std::this_thread::sleep_for(std::chrono::milliseconds(name == "exchanges" ? 0 : 3000));
  return 0;
}

}  // namespace
}  // namespace magi::testing

int main(int argc, char** argv) { return argc == 2 ? magi::testing::run(argv[1]) : 2; }
