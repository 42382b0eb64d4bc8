// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "comm/nvlink/peer_link.hpp"
#include "comm/rows/row_exchanger.hpp"

namespace magi::comm {

/// Is told of every move: what it is for, and bytes by peer.
using CountMove = std::function<void(ExchangeKind, std::span<const std::int64_t>)>;

/// The exchanger of ranks that write each other's memory. Rows go to their final place where the
/// caller took that from `place`, else through the window. What `count` refers to and the link's
/// base group must outlive it.
std::unique_ptr<RowExchanger> make_peer_exchanger(std::shared_ptr<PeerLink> link,
                                                  const DeviceAllocator& allocator,
                                                  std::int32_t beside_sms, CountMove count);

}  // namespace magi::comm
