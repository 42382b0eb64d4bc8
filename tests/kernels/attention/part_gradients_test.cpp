// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <vector>

#include "kernels/attention/checks.hpp"
#include "magi/error.hpp"

// Places of the gradients of parts: what no run is given.
namespace magi::test {
namespace {

BackwardArgs args_of_bfloat16() {
  BackwardArgs args;
  args.k.dtype = DType::BFloat16;
  return args;
}

/// An address that nobody reads.
void* address(std::uintptr_t value) { return std::bit_cast<void*>(value); }

std::vector<PartGradients> good_places() {
  const PartGradients place{.dk = address(4096),
                            .dv = address(8192),
                            .dk_row_bytes = 2048,
                            .dk_head_bytes = 256,
                            .dv_row_bytes = 1024,
                            .dv_head_bytes = 128};
  std::vector<PartGradients> places{place, {}, place};
  places[2].dtype = DType::BFloat16;
  return places;
}

TEST(PartGradientsTest, TakesOneForEachPartOrNone) {
  const BackwardArgs args = args_of_bfloat16();
  EXPECT_NO_THROW(check_part_gradients(good_places(), args, 3));
  EXPECT_NO_THROW(check_part_gradients({}, args, 3));
  EXPECT_THROW(check_part_gradients(good_places(), args, 2), InvalidArgument);
}

TEST(PartGradientsTest, RefusesWhatIsAddedTo) {
  BackwardArgs args = args_of_bfloat16();
  args.is_accumulating = true;
  EXPECT_THROW(check_part_gradients(good_places(), args, 3), InvalidArgument);
  EXPECT_NO_THROW(check_part_gradients({}, args, 3));
  // Then only dq is added to.
  args.is_writing_keys = true;
  EXPECT_NO_THROW(check_part_gradients(good_places(), args, 3));
}

TEST(PartGradientsTest, RefusesPlacesThatCannotBeWritten) {
  const auto refuses = [](auto poison) {
    std::vector<PartGradients> places = good_places();
    poison(places[0]);
    EXPECT_THROW(check_part_gradients(places, args_of_bfloat16(), 3), InvalidArgument);
  };
  refuses([](PartGradients& place) { place.dk = nullptr; });
  refuses([](PartGradients& place) { place.dv = nullptr; });
  refuses([](PartGradients& place) { place.dk = address(4104); });
  refuses([](PartGradients& place) { place.dv = address(8200); });
  refuses([](PartGradients& place) { place.dk_row_bytes += 8; });
  refuses([](PartGradients& place) { place.dk_head_bytes += 8; });
  refuses([](PartGradients& place) { place.dv_row_bytes += 8; });
  refuses([](PartGradients& place) { place.dv_head_bytes += 8; });
  refuses([](PartGradients& place) { place.dtype = DType::Float16; });
}

}  // namespace
}  // namespace magi::test
