/* Pairs of outputs, counted by how two columns order them, for many weightings at once.
 *
 * Outputs come sorted by the metric. A Fenwick tree over the human levels holds the weight of all outputs that lie
 * below the present one's tie window; how much of it is of lower, the same, or higher level says how many pairs are
 * ordered alike, tied by humans, or ordered the other way round. */
#include "outputs.h"

#include <string.h>

typedef struct {
    uint32_t *weight; /* [output][lane], in the metric's order */
    uint32_t *tree;   /* [level + 1][lane], of the weight entered */
    uint32_t *level;  /* [level][lane], the same by level */
} Scratch;

typedef struct {
    uint64_t alike[LANES], opposed[LANES], human_tied[LANES];
    uint32_t entered[LANES], lower[LANES];
} Tally;

/* Reads `lanes` draws' weights of one group, as far as there are such draws. -2: not whole, negative, or too many. */
static inline int read_weights(const PairWork *work, int64_t group, int64_t draw, const int lanes, Scratch *scratch) {
    int64_t start = work->of.starts[group], size = work->of.starts[group + 1] - start;
    int64_t present = work->of.draws - draw < lanes ? work->of.draws - draw : lanes;
    double total[LANES] = {0};
    int bad = 0;
    if (present < lanes) memset(scratch->weight, 0, (size_t)size * (size_t)lanes * sizeof(uint32_t));
    for (int64_t i = 0; i < size; i++) {
        const double *column = work->of.weights + draw * work->of.outputs + work->order[start + i];
        uint32_t *weight = scratch->weight + i * lanes;
        for (int64_t lane = 0; lane < present; lane++) {
            double given = column[lane * work->of.outputs];
            if (!(given >= 0 && given < 2147483648.0)) return -2;
            int32_t whole = (int32_t)given;
            bad |= (double)whole != given;
            total[lane] += given;
            weight[lane] = (uint32_t)whole;
        }
    }
    for (int lane = 0; lane < lanes; lane++) bad |= total[lane] >= 2147483648.0;
    return bad ? -2 : 0;
}

static inline void enter(Scratch *scratch, Tally *tally, const uint32_t *weight, int32_t level, int32_t levels,
                         const int lanes) {
    for (int32_t node = level + 1; node <= levels; node += node & -node) {
        uint32_t *sum = scratch->tree + (int64_t)node * lanes;
        for (int lane = 0; lane < lanes; lane++) sum[lane] += weight[lane];
    }
    uint32_t *same = scratch->level + (int64_t)level * lanes;
    for (int lane = 0; lane < lanes; lane++) same[lane] += weight[lane];
    for (int lane = 0; lane < lanes; lane++) tally->entered[lane] += weight[lane];
}

static inline void compare(const Scratch *scratch, Tally *tally, const uint32_t *weight, int32_t level,
                           const int lanes) {
    uint32_t *lower = tally->lower;
    for (int lane = 0; lane < lanes; lane++) lower[lane] = 0;
    for (int32_t node = level; node > 0; node &= node - 1) {
        const uint32_t *sum = scratch->tree + (int64_t)node * lanes;
        for (int lane = 0; lane < lanes; lane++) lower[lane] += sum[lane];
    }
    const uint32_t *same = scratch->level + (int64_t)level * lanes;
    for (int lane = 0; lane < lanes; lane++) {
        uint32_t higher = tally->entered[lane] - lower[lane] - same[lane];
        tally->alike[lane] += (uint64_t)weight[lane] * lower[lane];
        tally->human_tied[lane] += (uint64_t)weight[lane] * same[lane];
        tally->opposed[lane] += (uint64_t)weight[lane] * higher;
    }
}

static inline uint64_t pairs_among(uint64_t count) { return count ? count * (count - 1) / 2 : 0; }

static inline void write_counts(const PairWork *work, int64_t group, int64_t draw, const Scratch *scratch,
                                const Tally *tally, int32_t levels, const int lanes) {
    for (int lane = 0; lane < lanes && draw + lane < work->of.draws; lane++) {
        uint64_t tied = 0;
        const uint32_t *weight = scratch->level + lane;
        for (int64_t level = 0; level < levels; level++) tied += pairs_among(weight[level * lanes]);
        uint64_t both = tied - tally->human_tied[lane];
        uint64_t rest = tally->alike[lane] + tally->opposed[lane] + tied;
        int64_t *counts = work->counts + ((draw + lane) * work->of.groups + group) * 5;
        counts[0] = (int64_t)tally->alike[lane];
        counts[1] = (int64_t)tally->opposed[lane];
        counts[2] = (int64_t)tally->human_tied[lane];
        counts[3] = (int64_t)(pairs_among(tally->entered[lane]) - rest);
        counts[4] = (int64_t)both;
    }
}

static inline int count_group(const PairWork *work, int64_t group, int64_t draw, const int lanes, Scratch *scratch) {
    int64_t start = work->of.starts[group], size = work->of.starts[group + 1] - start;
    int failed = read_weights(work, group, draw, lanes, scratch);
    if (failed) return failed;
    int32_t levels = 0;
    for (int64_t i = start; i < start + size; i++) {
        if (work->levels[i] >= levels) levels = work->levels[i] + 1;
    }
    memset(scratch->tree, 0, ((size_t)levels + 1) * (size_t)lanes * sizeof(uint32_t));
    memset(scratch->level, 0, (size_t)levels * (size_t)lanes * sizeof(uint32_t));
    Tally tally = {0};
    int64_t next = 0;
    for (int64_t i = 0; i < size; i++) {
        for (; next < work->lows[start + i] - start; next++) {
            enter(scratch, &tally, scratch->weight + next * lanes, work->levels[start + next], levels, lanes);
        }
        compare(scratch, &tally, scratch->weight + i * lanes, work->levels[start + i], lanes);
    }
    for (; next < size; next++) {
        enter(scratch, &tally, scratch->weight + next * lanes, work->levels[start + next], levels, lanes);
    }
    write_counts(work, group, draw, scratch, &tally, levels, lanes);
    return 0;
}

int count_pairs(const PairWork *work) {
    int64_t size = largest_group(&work->of), lanes = work->of.draws == 1 ? 1 : LANES;
    Scratch scratch = {.weight = room(size * lanes, sizeof(uint32_t)),
                       .tree = room((size + 1) * lanes, sizeof(uint32_t)),
                       .level = room((size + 1) * lanes, sizeof(uint32_t))};
    int failed = scratch.weight == NULL || scratch.tree == NULL || scratch.level == NULL ? -1 : 0;
    for (int64_t draw = 0; draw < work->of.draws && !failed; draw += lanes) {
        for (int64_t group = 0; group < work->of.groups && !failed; group++) {
            /* Constants, so that the compiler makes one function of each width. */
            if (lanes == 1) failed = count_group(work, group, draw, 1, &scratch);
            else failed = count_group(work, group, draw, LANES, &scratch);
        }
    }
    free(scratch.weight), free(scratch.tree), free(scratch.level);
    return failed;
}
