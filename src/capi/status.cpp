// SPDX-License-Identifier: Apache-2.0
#include "capi/status.hpp"

#include <exception>
#include <new>
#include <string>

#include "base/log.hpp"
#include "capi/handles.hpp"
#include "magi/error.hpp"
#include "magi/version.hpp"

namespace magi::capi {
namespace {

struct LastError {
  std::string text;
  const char* message = "";
  std::int32_t comm_failure = 0;
  std::int32_t cuda_error = 0;
};

LastError& last_error() {
  thread_local LastError error;
  return error;
}

magi_status record(magi_status status, const char* message, std::int32_t comm_failure = 0,
                   std::int32_t cuda_error = 0) noexcept {
  LastError& error = last_error();
  error.comm_failure = comm_failure;
  error.cuda_error = cuda_error;
  try {
    error.text = message;
    error.message = error.text.c_str();
  } catch (...) {
    error.message = "host memory is exhausted";
  }
  return status;
}

}  // namespace

magi_status record_current_exception() noexcept {
  try {
    throw;
  } catch (const InvalidArgument& error) {
    return record(MAGI_INVALID_ARGUMENT, error.what());
  } catch (const CommError& error) {
    return record(MAGI_COMM_ERROR, error.what(), static_cast<std::int32_t>(error.failure()));
  } catch (const CudaError& error) {
    return record(MAGI_CUDA_ERROR, error.what(), 0, error.code());
  } catch (const std::bad_alloc&) {
    return record(MAGI_OUT_OF_MEMORY, "host memory is exhausted");
  } catch (const std::exception& error) {
    return record(MAGI_INTERNAL_ERROR, error.what());
  } catch (...) {
    return record(MAGI_INTERNAL_ERROR, "an exception of unknown type");
  }
}

}  // namespace magi::capi

using magi::capi::guarded;

int32_t magi_abi_version(void) { return MAGI_ABI_VERSION; }
const char* magi_version(void) { return magi::kVersion; }
const char* magi_gpu_architectures(void) { return MAGI_GPU_ARCHITECTURES; }
const char* magi_last_error_message(void) { return magi::capi::last_error().message; }
int32_t magi_last_comm_failure(void) { return magi::capi::last_error().comm_failure; }
int32_t magi_last_cuda_error(void) { return magi::capi::last_error().cuda_error; }

magi_status magi_set_log_sink(magi_log_fn sink, void* context, int32_t threshold) {
  return guarded([&] {
    if (threshold < MAGI_LOG_ERROR || threshold > MAGI_LOG_DEBUG) {
      throw magi::invalid("threshold", threshold, "0 (error) to 3 (debug)");
    }
    magi::LogSink forward;
    if (sink != nullptr) {
      forward = [sink, context](magi::LogLevel level, std::string_view module,
                                std::string_view text) {
        sink(context, static_cast<int32_t>(level), std::string(module).c_str(),
             std::string(text).c_str());
      };
    }
    magi::set_log_sink(std::move(forward), static_cast<magi::LogLevel>(threshold));
  });
}

const void* magi_buffer_data(const magi_buffer* buffer) {
  return buffer == nullptr ? nullptr : buffer->bytes.data();
}

size_t magi_buffer_size_bytes(const magi_buffer* buffer) {
  return buffer == nullptr ? 0 : buffer->bytes.size() - 1;
}

void magi_buffer_destroy(magi_buffer* buffer) { delete buffer; }
