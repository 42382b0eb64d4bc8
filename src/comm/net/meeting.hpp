// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "comm/net/stream_socket.hpp"
#include "magi/comm.hpp"

namespace magi::comm {

/// The place where ranks find each other: rank 0 listens there, the others connect.
class MeetingPlace {
 public:
  struct Arrival {
    StreamSocket socket;
    std::string who;  ///< for messages: which process it is
  };
  virtual ~MeetingPlace() = default;
  virtual std::string name() const = 0;
  /// Nothing when another process listens there for the same group.
  virtual std::optional<StreamSocket> listen_as_host(std::int32_t num_ranks) = 0;
  /// Nothing where no one came, or one who may not.
  virtual std::optional<Arrival> accept(const StreamSocket& listener) = 0;
  /// Nothing when no one listens there (yet).
  virtual std::optional<StreamSocket> connect(Deadline deadline) = 0;
  /// Says for messages where connect() looked for the host or what it met there; may be empty.
  virtual std::string obstacle() const { return {}; }
};

/// Meets the other ranks there and gives the bootstrap among them. Throws InvalidArgument where the
/// arguments or the place's name are none, and to all ranks when a rank comes twice or counts other
/// ranks; CommError when one does not come.
Bootstrap meet(std::unique_ptr<MeetingPlace> place, std::int32_t rank, std::int32_t num_ranks,
               std::chrono::milliseconds limit);

}  // namespace magi::comm
