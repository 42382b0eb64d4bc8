// SPDX-License-Identifier: Apache-2.0
#include "base/check.hpp"
#include "magi/comm.hpp"

namespace magi {

void Communicator::all_to_all_v(const DeviceExchange& /*exchange*/, void* /*stream*/) {
  throw invalid("communicator", std::string("a ") + backend() + " group",
                "a group that moves device memory");
}

}  // namespace magi
