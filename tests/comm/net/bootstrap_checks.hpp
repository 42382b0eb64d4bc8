// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "magi/comm.hpp"
#include "magi/error.hpp"

// What is the same for bootstraps at any place.
namespace magi::testing {

/// What a rank gives: `count` bytes, other ones on each rank.
inline std::vector<std::byte> bytes_of(std::int32_t rank, std::size_t count) {
  return std::vector<std::byte>(count, static_cast<std::byte>(rank + 1));
}

/// Every rank of `num_ranks` gets what all gave, empty, short and long.
inline void expect_rank_order(const Bootstrap& bootstrap, std::int32_t rank,
                              std::int32_t num_ranks) {
  for (const std::size_t scale : {std::size_t{0}, std::size_t{3}, std::size_t{500'000}}) {
    const auto all = bootstrap(bytes_of(rank, scale * static_cast<std::size_t>(rank)));
    ASSERT_EQ(all.size(), static_cast<std::size_t>(num_ranks));
    for (std::int32_t other = 0; other < num_ranks; ++other) {
      EXPECT_EQ(all[static_cast<std::size_t>(other)],
                bytes_of(other, scale * static_cast<std::size_t>(other)));
    }
  }
}

/// The message of the InvalidArgument that `call` throws, or what it did instead.
inline std::string invalid_argument(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another exception: ") + error.what();
  }
  return "no exception";
}

}  // namespace magi::testing
