// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_library.hpp"
#include "doctor/gpus.hpp"

namespace magi::cli {

NcclFacts find_nccl() {
  try {
    const comm::NcclLibrary library("");
    return {.version = comm::nccl_version_text(library.version()),
            .path = library.path(),
            .refusal = {}};
  } catch (const CommError& error) {
    return {.version = {}, .path = {}, .refusal = error.what()};
  }
}

}  // namespace magi::cli
