// Which sequences of a step begin with the same blocks, so that these are attended for all of them at once.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels.hpp"

namespace octavo {

struct SharedPrefixes {
    std::vector<SharedTiles> shared;
    std::vector<std::int32_t> tiles;  // what `shared` names ranges of
};

// Finds whole partitions that at least two tiles see at the same blocks, from position 0 on, and sets the tiles' `shared`
// to how many each has. Tiles that fill the rows of a work item with the queries of one sequence stay by themselves.
// `group`: query heads per key/value head; positions [tokens]; context_lengths [rows]; block_tables [rows, max_blocks].
SharedPrefixes find_shared_prefixes(std::vector<QueryTile>& tiles, int group, const std::int32_t* positions,
                                    const std::int32_t* context_lengths, const std::int32_t* block_tables,
                                    std::size_t max_blocks);

}  // namespace octavo
