// SPDX-License-Identifier: Apache-2.0
// Times the lists that are made on the device from a mask of blocks, in replayed graphs:
// block_list_bench [ROWS_FILE]. 512 x 512 blocks of 64 rows for each of 8 kv heads, an eighth of
// them visible; the lists of the forward, those of the backward, and both.
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <vector>

#include "cuda/check.hpp"
#include "cuda/memory.hpp"
#include "gpu/graph_time.hpp"
#include "kernels/schedule/blocks/block_key_lists.hpp"
#include "mask/random_mask.hpp"

namespace magi::bench {
namespace {

BlockGrid bench_grid() {
  return {.rows_q = 512 * 64, .rows_k = 512 * 64, .heads_kv = 8, .mask_heads = 8};
}

DeviceBuffer random_mask(const BlockGrid& grid) {
  RandomStream random(1);
  std::vector<std::uint8_t> visible(static_cast<std::size_t>(grid.num_lists()) *
                                    static_cast<std::size_t>(grid.num_k()));
  for (std::uint8_t& value : visible) value = random.between(0, 7) == 0 ? 1 : 0;
  return bytes_to_device_sync(visible.data(), visible.size());
}

int run(const char* file) {
  const BlockGrid grid = bench_grid();
  const DeviceBuffer mask = random_mask(grid);
  const auto* visible = static_cast<const std::uint8_t*>(mask.data());
  const BlockListShape forward{.grid = grid,
                               .section_heads = 2,
                               .max_entries = std::int64_t{grid.num_lists()} * grid.num_k()};
  BlockKeyShape backward{.grid = grid, .tile_keys = 64};
  backward.max_records = most_records(backward, 1);
  const BlockListLayout forward_layout = block_list_layout(forward);
  const BlockKeyLayout backward_layout = block_key_layout(backward);
  const DeviceBuffer forward_memory(forward_layout.size_bytes);
  const DeviceBuffer backward_memory(backward_layout.size_bytes);
  const auto enqueue_forward = [&](cudaStream_t stream) {
    build_block_lists(forward, forward_layout, {visible}, forward_memory.data(), stream);
  };
  const auto enqueue_backward = [&](cudaStream_t stream) {
    build_block_key_lists(backward, backward_layout, {visible}, backward_memory.data(), stream);
  };
  const double forward_us = time_graph(enqueue_forward);
  const double backward_us = time_graph(enqueue_backward);
  const double both_us = time_graph([&](cudaStream_t stream) {
    enqueue_forward(stream);
    enqueue_backward(stream);
  });
  std::printf("lists of the forward %.1f us, of the backward %.1f us, both %.1f us\n", forward_us,
              backward_us, both_us);
  if (file == nullptr) return 0;
  std::ofstream rows(file);
  rows << R"([{"name": "sparse.list.us", "value": )" << both_us << R"(, "unit": "us"}])" << '\n';
  return rows ? 0 : 1;
}

}  // namespace
}  // namespace magi::bench

int main(int count, char** arguments) {
  try {
    return magi::bench::run(count > 1 ? arguments[1] : nullptr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "block_list_bench: %s\n", error.what());
    return 1;
  }
}
