// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

// The few functions of NCCL's host interface that magi calls, as declarations of its own: no header
// of NCCL takes part in the build, and the library is opened when a group asks for it.
namespace magi::comm {

/// Results of calls; NCCL's numbers.
enum class NcclResult : std::int32_t {
  Success = 0,
  UnhandledCudaError = 1,
  SystemError = 2,
  InternalError = 3,
  InvalidArgument = 4,
  InvalidUsage = 5,
  RemoteError = 6,
  InProgress = 7,
};

struct NcclUniqueId {
  std::array<char, 128> bytes;
};

/// NCCL's communicator.
using NcclHandle = struct NcclOpaque*;

/// The form that NCCL's config has since version 2.17. NCCL takes as many bytes as `size` says and
/// fills in what later versions added, so this form stays right: no field after max_ctas but an
/// unset net_name, and nothing of NVLS.
struct NcclConfig {
  static constexpr std::int32_t kUnset = INT32_MIN;
  std::size_t size = sizeof(NcclConfig);
  std::uint32_t magic = 0xcafebeef;
  std::uint32_t version = 21700;
  std::int32_t blocking = 0;
  std::int32_t cga_cluster_size = kUnset;
  std::int32_t min_ctas = kUnset;
  std::int32_t max_ctas = kUnset;
  const char* net_name = nullptr;
};
static_assert(sizeof(NcclConfig) == 40);

/// Versions as ncclGetVersion gives them.
inline constexpr std::int32_t kOldestNccl = 21800;
std::string nccl_version_text(std::int32_t version);

/// An opened NCCL library, never closed: threads of it may run to the process's end.
class NcclLibrary {
 public:
  /// Opens `path`; where that is empty the library that the process has loaded already, such as a
  /// framework's, else libnccl.so.2. Throws CommError(System) naming the library when it cannot be
  /// opened, lacks a function, or is older than 2.18.
  explicit NcclLibrary(const std::string& path);

  std::int32_t version() const { return version_; }
  /// The path of the library.
  const std::string& path() const { return path_; }

  /// NCCL's functions without their prefix; their arguments are NCCL's. Streams are cudaStream_t.
  NcclResult (*get_unique_id)(NcclUniqueId*) = nullptr;
  NcclResult (*comm_init_rank_config)(NcclHandle*, int num_ranks, NcclUniqueId, int rank,
                                      NcclConfig*) = nullptr;
  NcclResult (*comm_finalize)(NcclHandle) = nullptr;
  NcclResult (*comm_destroy)(NcclHandle) = nullptr;
  NcclResult (*comm_abort)(NcclHandle) = nullptr;
  NcclResult (*comm_get_async_error)(NcclHandle, NcclResult*) = nullptr;
  const char* (*get_error_string)(NcclResult) = nullptr;
  const char* (*get_last_error)(NcclHandle) = nullptr;
  NcclResult (*group_start)() = nullptr;
  NcclResult (*group_end)() = nullptr;
  NcclResult (*send)(const void*, std::size_t count, int data_type, int peer, NcclHandle,
                     void* stream) = nullptr;
  NcclResult (*recv)(void*, std::size_t count, int data_type, int peer, NcclHandle,
                     void* stream) = nullptr;

  static constexpr int kBytes = 1;  ///< ncclUint8

 private:
  std::int32_t version_ = 0;
  std::string path_;
};

}  // namespace magi::comm
