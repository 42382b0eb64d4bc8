// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "magi/comm_vtable.h"

// plugins/mpi is libmagi_mpi, which gives a program the transport `mpi` without linking libmagi to
// MPI. magi_mpi_group_create (mpi_table.cpp) fills the C table of a transport, magi/comm_vtable.h,
// with functions over a Group, which moves bytes by MPI's sends and receives.
namespace magi::mpi {

/// Bytes under way: the requests that have not ended and the rank at the other end of each.
struct Transfers {
  std::vector<MPI_Request> requests;
  std::vector<std::int32_t> peers;
  std::vector<bool> are_received;
};

/// One rank's side of a group over a copy of a communicator. MPI is called under one mutex of
/// the process, and no wait is inside of MPI, so that deadlines and aborts end every wait.
class Group {
 public:
  /// Collective.
  Group(MPI_Comm communicator, std::chrono::milliseconds deadline);

  std::int32_t rank() const { return rank_; }
  std::int32_t num_ranks() const { return num_ranks_; }

  /// These return a status of the C table; after one that is not OK, message() and failure() say
  /// why. The first failure is the group's: every later call gives it again.
  std::int32_t start(const magi_byte_exchange& exchange, Transfers& transfers);
  std::int32_t wait(Transfers& transfers);
  std::int32_t close();
  /// Tells the others, whose waits end.
  void abort(const std::string& reason);
  /// Gives up transfers: where any is under way the group fails, for their memory goes.
  void drop(Transfers& transfers);

  const char* message() const { return message_.c_str(); }
  std::int32_t failure() const { return failure_; }

 private:
  void post(const magi_byte_exchange& exchange, Transfers& transfers, int tag);
  bool advance(Transfers& transfers);
  void give_up(MPI_Request& request, bool is_received);
  void look_for_alarm();
  void notify_others();
  void fail(std::int32_t failure, const std::string& text);
  bool is_good(int code);
  std::string missing(const Transfers& transfers) const;

  MPI_Comm data_ = MPI_COMM_NULL;
  MPI_Comm alarms_ = MPI_COMM_NULL;  ///< carries nothing but texts of failures
  std::chrono::milliseconds deadline_;
  std::int32_t rank_ = 0;
  std::int32_t num_ranks_ = 1;
  int next_tag_ = 0;          ///< of messages; ranks start the same exchanges in the same order
  std::int32_t failure_ = 0;  ///< 0: none; else as last_error of the C table tells
  std::string message_;
};

/// Whether every group of this process was closed in order, so that MPI may be ended.
bool are_all_closed();

}  // namespace magi::mpi
