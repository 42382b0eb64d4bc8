// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "comm/nvlink/peer_exchanger.hpp"
#include "runtime/check_attention.hpp"

namespace magi {

/// The prepared objects that the attention calls of one pass run with, by attend; null where an
/// attention call has nothing to do.
template <typename Prepared>
using PreparedAttends = std::vector<std::shared_ptr<const Prepared>>;

/// The attention calls of a rank as its backend prepared them on one device, by the types of the
/// tensors. The first call of a kind prepares, which may block.
class AttendCache {
 public:
  /// `peers` tells how keys arrive, whose tables it was given (prepare), or is null. Throws
  /// InvalidArgument where the backend or the plan's head dims do not suit the device.
  AttendCache(const RankSteps& steps, const AttentionOptions& options, std::int32_t device,
              const comm::PeerExchanger* peers);

  const AttentionBackend& backend() const { return *backend_; }
  /// Whether the rank's one attention call begins while its keys come (RankSteps::is_arrival).
  bool takes_in_flight_keys() const { return takes_in_flight_; }

  const PreparedAttends<PreparedForward>& forward(const PassArgs& args);
  const PreparedAttends<PreparedBackward>& backward(const PassArgs& args);
  std::size_t size_bytes() const { return held_bytes_; }

 private:
  TensorView without_data(DType dtype, Range rows, Range heads, std::int32_t dim) const;
  /// The queries, keys, values and slices of an attention call.
  template <typename Args>
  Args shapes_of(const AttendCall& call, DType dtype) const;

  /// The keys of the attention call that takes in-flight ones, of which the call reads the first
  /// `own_rows` in the own tensors.
  InFlightKeys in_flight_keys(std::int32_t own_rows) const;

  const RankSteps& steps_;
  std::shared_ptr<const AttentionBackend> backend_;
  std::int32_t device_;
  std::int32_t exchange_sms_;  ///< that attends leave to exchanges under way
  const comm::PeerExchanger* peers_;
  bool takes_in_flight_ = false;
  std::size_t held_bytes_ = 0;  ///< of all that was prepared
  std::map<DType, PreparedAttends<PreparedForward>> forwards_;
  /// Those by the types of q and dout, and whether it is fast.
  std::map<std::tuple<DType, DType, bool>, PreparedAttends<PreparedBackward>> backwards_;
};

}  // namespace magi
