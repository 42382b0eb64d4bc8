// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/listed/tensors.hpp"

#include <limits>

namespace magi::test {
namespace {

void repeat_first_row(GuardedTensor& tensor) {
  for (std::int64_t row = 1; row < tensor.rows(); ++row) {
    for (std::int64_t head = 0; head < tensor.heads(); ++head) {
      for (std::int64_t d = 0; d < tensor.dim(); ++d) {
        tensor.set(row, head, d, tensor.get(0, head, d));
      }
    }
  }
  tensor.upload_sync();
}

}  // namespace

ListedTensors::ListedTensors(const ListedCase& test)
    : q(test.type, test.rows_q, test.heads_q, test.dim_qk, test.layout),
      k(test.type, test.rows_k, test.heads_kv, test.dim_qk, test.layout),
      v(test.type, test.rows_k, test.heads_kv, test.dim_v, test.layout),
      sink(listed_sink(test)) {
  RandomStream random(test.seed);
  for (auto* tensor : {&q, &k, &v}) fill_random(*tensor, random, test.magnitude);
  if (sink) fill_random(*sink, random, 2.0);
  if (test.repeats_sinks) repeat_first_row(*sink);
}

void ListedTensors::poison_unseen_keys(const ListedIndices& lists) {
  for (auto* tensor : {&k, &v}) {
    for (std::int32_t key = 0; key < tensor->rows(); ++key) {
      if (lists.is_seen(key)) continue;
      for (std::int64_t head = 0; head < tensor->heads(); ++head) {
        for (std::int64_t d = 0; d < tensor->dim(); ++d) {
          tensor->set(key, head, d, std::numeric_limits<double>::quiet_NaN());
        }
      }
    }
    tensor->upload_sync();
  }
}

std::unique_ptr<GuardedTensor> listed_sink(const ListedCase& test) {
  if (test.num_sinks == 0) return nullptr;
  const bool is_shared = test.params.sink_layout == SinkLayout::SinkHead;
  return std::make_unique<GuardedTensor>(DType::Float32, is_shared ? 1 : test.rows_q,
                                         test.num_sinks, test.heads_q);
}

std::vector<double> heads_of(const GuardedTensor& tensor, std::int32_t begin, std::int32_t count) {
  std::vector<double> values;
  for (std::int64_t row = 0; row < tensor.rows(); ++row) {
    for (std::int64_t head = begin; head < begin + count; ++head) {
      for (std::int64_t d = 0; d < tensor.dim(); ++d) values.push_back(tensor.get(row, head, d));
    }
  }
  return values;
}

std::vector<double> sink_heads_of(const GuardedTensor& sink, std::int32_t begin,
                                  std::int32_t count) {
  std::vector<double> values;
  for (std::int64_t row = 0; row < sink.rows(); ++row) {
    for (std::int64_t i = 0; i < sink.heads(); ++i) {
      for (std::int64_t head = begin; head < begin + count; ++head) {
        values.push_back(sink.get(row, i, head));
      }
    }
  }
  return values;
}

reference::DenseInput input_of(const ListedCase& test, const ListedTensors& tensors,
                               std::int32_t kv_head) {
  const std::int32_t group = test.heads_q / test.heads_kv;
  return {.rows_q = test.rows_q,
          .rows_k = test.rows_k,
          .heads_q = group,
          .heads_kv = 1,
          .dim_qk = test.dim_qk,
          .dim_v = test.dim_v,
          .q = heads_of(tensors.q, kv_head * group, group),
          .k = heads_of(tensors.k, kv_head, 1),
          .v = heads_of(tensors.v, kv_head, 1),
          .sink = tensors.sink ? sink_heads_of(*tensors.sink, kv_head * group, group)
                               : std::vector<double>{},
          .num_sinks = test.num_sinks,
          .params = test.params};
}

}  // namespace magi::test
