// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/block_case.hpp"

namespace magi::test {

std::ostream& operator<<(std::ostream& stream, const BlockCase& test) {
  return stream << test.shape() << ", float out " << test.has_float_out << ", blocks "
                << test.q_block << " x " << test.k_block << ", heads of the mask "
                << test.mask_heads << ", causal " << test.is_causal << ", " << test.percent
                << " %, up to " << test.most_times << " times, packed " << test.packed_heads
                << ", seed " << test.seed;
}

BlockCase random_block_case(std::uint64_t seed) {
  RandomStream random(seed);
  BlockCase test{.seed = seed};
  test.heads_kv = random.between(1, 3);
  const std::int32_t heads_per_kv = 1 << random.between(0, 4);
  test.heads_q = test.heads_kv * heads_per_kv;
  test.mask_heads = random.chance(70) ? test.heads_kv : 1;
  test.rows_q = random.between(1, 400);
  test.rows_k = random.between(1, 900);
  test.dim_qk = test.dim_v = random.chance(50) ? 128 : 64;
  if (random.chance(20)) test.dim_qk = 8 * random.between(1, 16);
  if (random.chance(20)) test.dim_v = 8 * random.between(1, 16);
  test.type = random.chance(70) ? DType::BFloat16 : DType::Float16;
  test.layout = static_cast<Layout>(random.between(0, 2));
  test.has_float_out = random.chance(20);
  test.num_sinks = random.chance(20) ? random.between(1, 3) : 0;
  const std::int32_t least = 64 / heads_per_kv;
  test.q_block = least * random.between(1, 256 / least);
  test.k_block = 16 * random.between(1, 16);
  test.is_causal = random.chance(50);
  test.percent = random.between(0, 100);
  test.most_times = random.chance(20) ? 3 : 1;
  return test;
}

BlockCaseData::BlockCaseData(const BlockCase& test)
    : GuardedInputs(test.shape(), test.seed + 1000, 1.0) {
  RandomStream random(test.seed + 3000);
  const std::int64_t count = std::int64_t{test.mask_heads} * test.num_q() * test.num_k();
  for (std::int64_t i = 0; i < count; ++i) {
    const bool is_seen = random.chance(test.percent);
    visible.push_back(static_cast<std::uint8_t>(is_seen ? random.between(1, test.most_times) : 0));
  }
  on_device = bytes_to_device_sync(visible.data(), visible.size());
}

BlockMask mask_of(const BlockCase& test, const BlockCaseData& data) {
  return {.visible = static_cast<const std::uint8_t*>(data.on_device.data()),
          .heads = test.mask_heads,
          .q_block = test.q_block,
          .k_block = test.k_block,
          .is_causal = test.is_causal,
          .max_blocks = test.most_times == 1 ? 0 : test.most_times * std::ssize(data.visible)};
}

std::vector<std::uint16_t> counts_of(const BlockCase& test, const BlockCaseData& data,
                                     std::int32_t kv_head) {
  std::vector<std::uint16_t> counts;
  const std::int32_t head = test.mask_heads == 1 ? 0 : kv_head;
  for (std::int32_t i = 0; i < test.rows_q; ++i) {
    for (std::int32_t j = 0; j < test.rows_k; ++j) {
      const bool is_hidden = test.is_causal && j > i + test.rows_k - test.rows_q;
      const auto place = static_cast<std::size_t>(
          (head * test.num_q() + i / test.q_block) * test.num_k() + j / test.k_block);
      counts.push_back(is_hidden ? 0 : data.visible[place]);
    }
  }
  return counts;
}

}  // namespace magi::test
