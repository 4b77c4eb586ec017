#include "shared_prefix.hpp"

#include <algorithm>

namespace octavo {
namespace {

constexpr int PARTITION_BLOCKS = PARTITION_TOKENS / BLOCK_TOKENS;
// Rows of one work item: few enough for the threads to share a prefix, enough to read it a few times only.
constexpr int SHARED_ROWS = 4 * ATTENTION_ROWS;

// A tile and the blocks that its sequence begins with.
struct Member {
    std::int32_t tile;
    int whole;  // partitions that all of its queries see whole
    const std::int32_t* blocks;

    const std::int32_t* at(int partition) const { return blocks + partition * PARTITION_BLOCKS; }
};

bool same(const Member& a, const Member& b, int partition) {
    return std::equal(a.at(partition), a.at(partition) + PARTITION_BLOCKS, b.at(partition));
}

class Finder {
public:
    Finder(std::vector<QueryTile>& tiles, int heads) : tiles_(tiles), heads_(heads) {}

    // Members share everything before `partition`.
    void share(std::vector<Member> members, int partition) {
        std::erase_if(members, [=](const Member& member) { return member.whole <= partition; });
        std::sort(members.begin(), members.end(), [=](const Member& a, const Member& b) {
            return std::lexicographical_compare(a.at(partition), a.at(partition) + PARTITION_BLOCKS, b.at(partition),
                                                b.at(partition) + PARTITION_BLOCKS);
        });
        for (auto begin = members.begin(); begin != members.end();) {
            const auto end = std::find_if(begin, members.end(),
                                          [&](const Member& member) { return !same(*begin, member, partition); });
            if (end - begin > 1) {
                add({begin, end}, partition);
                share({begin, end}, partition + 1);
            }
            begin = end;
        }
    }

    SharedPrefixes found;

private:
    void add(const std::vector<Member>& members, int partition) {
        int rows = SHARED_ROWS;
        for (const Member& member : members) {
            QueryTile& tile = tiles_[static_cast<std::size_t>(member.tile)];
            tile.shared = partition + 1;
            const int more = tile.count * heads_;
            if (rows + more > SHARED_ROWS) {
                found.shared.push_back({partition, static_cast<std::int32_t>(found.tiles.size()), 0});
                rows = 0;
            }
            rows += more;
            found.tiles.push_back(member.tile);
            ++found.shared.back().count;
        }
    }

    std::vector<QueryTile>& tiles_;
    const int heads_;
};

}  // namespace

SharedPrefixes find_shared_prefixes(std::vector<QueryTile>& tiles, int group, const std::int32_t* positions,
                                    const std::int32_t* context_lengths, const std::int32_t* block_tables,
                                    std::size_t max_blocks) {
    const int heads = std::min(group, ATTENTION_ROWS);
    std::vector<Member> members;
    for (std::size_t t = 0; t < tiles.size(); ++t) {
        const QueryTile& tile = tiles[t];
        if (tile.count > 1 && tile.count * heads > ATTENTION_ROWS / 2) continue;
        const int lowest = *std::min_element(positions + tile.begin, positions + tile.begin + tile.count);
        const int whole = (std::min(lowest + 1, context_lengths[tile.row])) / PARTITION_TOKENS;
        const std::int32_t* blocks = block_tables + static_cast<std::size_t>(tile.row) * max_blocks;
        if (whole > 0) members.push_back({static_cast<std::int32_t>(t), whole, blocks});
    }
    Finder finder(tiles, heads);
    if (members.size() > 1) finder.share(std::move(members), 0);
    return std::move(finder.found);
}

}  // namespace octavo
