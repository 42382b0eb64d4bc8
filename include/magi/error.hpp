// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace magi {

/// A caller's argument is outside what is allowed; the message names argument, value seen, values
/// allowed.
class InvalidArgument : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// A CUDA call failed; `code` is the cudaError_t.
class CudaError : public std::runtime_error {
 public:
  CudaError(const std::string& message, int code) : std::runtime_error(message), code_(code) {}
  int code() const { return code_; }

 private:
  int code_;
};

/// The kind of a failure between ranks.
enum class CommFailure : std::int32_t {
  Timeout = 1,       ///< a peer did not arrive before the deadline
  PeerDied = 2,      ///< a peer's process or thread ended
  PlanMismatch = 3,  ///< ranks hold different plans
  Aborted = 4,       ///< a rank called abort()
  System = 5,        ///< the operating system refused a resource
};

/// Communication failed; the message names rank, peer, stage and plan digest where they are known.
class CommError : public std::runtime_error {
 public:
  CommError(const std::string& message, CommFailure failure)
      : std::runtime_error(message), failure_(failure) {}
  CommFailure failure() const { return failure_; }

 private:
  CommFailure failure_;
};

/// An invariant of the library is broken: a defect of magi, not of the caller.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

}  // namespace magi
