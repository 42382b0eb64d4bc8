// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace magi {

/// A table in device memory that tells a kernel where to store rows: two addresses in each record.
struct AddressTable {
  std::byte* records = nullptr;
  std::int32_t num_records = 0;
  std::int32_t record_bytes = 0;
  std::int32_t offsets[2] = {};  ///< of the addresses in a record, in bytes
};

}  // namespace magi
