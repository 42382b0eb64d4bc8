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

/// Rows at an address that nobody reads.
TensorView rows_at(std::uintptr_t address, std::int64_t dim) {
  return contiguous_view(std::bit_cast<void*>(address), DType::Float32, {64, 8, dim});
}

std::vector<PartGradients> good_places() {
  const PartGradients place{.dk = rows_at(4096, 64), .dv = rows_at(8192, 32)};
  std::vector<PartGradients> places{place, {}, place};
  places[2].dk.dtype = places[2].dv.dtype = DType::BFloat16;
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
  for (TensorView PartGradients::*const side : {&PartGradients::dk, &PartGradients::dv}) {
    refuses([side](PartGradients& place) { (place.*side).data = nullptr; });
    refuses([side](PartGradients& place) { (place.*side).data = rows_at(4104, 64).data; });
    refuses([side](PartGradients& place) { (place.*side).stride[0] += 2; });
    refuses([side](PartGradients& place) { (place.*side).stride[1] += 2; });
    refuses([side](PartGradients& place) { (place.*side).dtype = DType::BFloat16; });
  }
  refuses([](PartGradients& place) { place.dk.dtype = place.dv.dtype = DType::Float16; });
}

}  // namespace
}  // namespace magi::test
