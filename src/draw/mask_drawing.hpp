// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "draw/pictures.hpp"

// The content of pictures of a mask, in SVG and in characters.
namespace magi::draw {

/// Pairs that are drawn in one colour: the work of a rank, or the slices of a type.
struct Group {
  std::string name;
  std::string colour;
  std::int64_t pairs = 0;  ///< pairs that are shown
};

/// A part of a slice that is shown and has pairs, of one group.
struct Piece {
  BandSlice slice;
  std::size_t group = 0;
};

struct MaskDrawing {
  Range rows;  ///< rows that are shown
  Range keys;
  std::string summary;
  std::vector<Group> groups;  ///< all ranks, or all types
  std::vector<Piece> pieces;
};

/// Throws InvalidArgument for a placement of fewer rows, and as MaskPart says.
MaskDrawing mask_drawing(const Mask& mask, const Placement* placement, const MaskPart& part);

/// Round rows of a range about `count` of them, and its ends.
std::vector<std::int32_t> axis_rows(Range rows, int count);

/// The rows of line `index` where lines, at least one, stand for a range. A row may be in several.
Range share(Range rows, std::int32_t index, std::int32_t num_lines);

/// One of a grid of blocks, each of which stands for some rows and keys.
struct Block {
  std::int64_t pairs = 0;
  std::int64_t most = 0;  ///< pairs of its largest piece
  std::size_t group = 0;  ///< of that piece
};
/// The blocks, line by line.
std::vector<Block> blocks_of(const MaskDrawing& drawing, std::int32_t width, std::int32_t height);

}  // namespace magi::draw
