// SPDX-License-Identifier: Apache-2.0
#include "capi/handles.hpp"

const void* magi_buffer_data(const magi_buffer* buffer) {
  return buffer == nullptr ? nullptr : buffer->bytes.data();
}

size_t magi_buffer_size_bytes(const magi_buffer* buffer) {
  return buffer == nullptr ? 0 : buffer->bytes.size() - 1;
}

void magi_buffer_destroy(magi_buffer* buffer) { delete buffer; }
