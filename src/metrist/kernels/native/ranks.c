/* Comoments of weighted midranks, for many weightings at once.
 *
 * An output of weight w is there w times, tied with itself; so what a level's rank is follows from the weights of the
 * levels below it. */
#include "outputs.h"

#include <string.h>

enum { HUMAN, METRIC, SIDES };

typedef struct {
    double *weight;      /* [output][lane] */
    double *rank[SIDES]; /* [level][lane]: first the weight of the level, then twice its distance from the mean rank */
} Scratch;

typedef struct {
    double total[LANES], squares[SIDES][LANES], product[LANES], drawn[SIDES][LANES];
} Tally;

static inline void read_weights(const RankWork *work, int64_t group, int64_t draw, const int lanes, Scratch *scratch,
                                Tally *tally) {
    int64_t start = work->of.starts[group], size = work->of.starts[group + 1] - start;
    int64_t present = work->of.draws - draw < lanes ? work->of.draws - draw : lanes;
    if (present < lanes) memset(scratch->weight, 0, (size_t)size * (size_t)lanes * sizeof(double));
    for (int64_t lane = 0; lane < present; lane++) {
        const double *row = work->of.weights + (draw + lane) * work->of.outputs + start;
        for (int64_t i = 0; i < size; i++) {
            scratch->weight[i * lanes + lane] = row[i];
            tally->total[lane] += row[i];
        }
    }
}

static inline void rank_levels(const RankWork *work, int64_t group, int side, const int lanes, Scratch *scratch,
                               Tally *tally) {
    int64_t start = work->of.starts[group], size = work->of.starts[group + 1] - start;
    const int32_t *level = work->levels[side] + start;
    double *rank = scratch->rank[side];
    int32_t levels = 0;
    for (int64_t i = 0; i < size; i++) levels = level[i] >= levels ? level[i] + 1 : levels;
    memset(rank, 0, (size_t)levels * (size_t)lanes * sizeof(double));
    for (int64_t i = 0; i < size; i++) {
        double *sum = rank + (int64_t)level[i] * lanes;
        for (int lane = 0; lane < lanes; lane++) sum[lane] += scratch->weight[i * lanes + lane];
    }
    double below[LANES] = {0};
    for (int32_t l = 0; l < levels; l++) {
        double *here = rank + (int64_t)l * lanes;
        for (int lane = 0; lane < lanes; lane++) {
            double weight = here[lane], distance = 2 * below[lane] + weight - tally->total[lane];
            below[lane] += weight;
            tally->squares[side][lane] += weight * distance * distance;
            tally->drawn[side][lane] += weight > 0 ? 1.0 : 0.0;
            here[lane] = distance;
        }
    }
}

static inline void add_products(const RankWork *work, int64_t group, const int lanes, const Scratch *scratch,
                                  Tally *tally) {
    int64_t start = work->of.starts[group], size = work->of.starts[group + 1] - start;
    for (int64_t i = 0; i < size; i++) {
        const double *human = scratch->rank[HUMAN] + (int64_t)work->levels[HUMAN][start + i] * lanes;
        const double *metric = scratch->rank[METRIC] + (int64_t)work->levels[METRIC][start + i] * lanes;
        const double *weight = scratch->weight + i * lanes;
        for (int lane = 0; lane < lanes; lane++) tally->product[lane] += weight[lane] * human[lane] * metric[lane];
    }
}

static inline void rank_group(const RankWork *work, int64_t group, int64_t draw, const int lanes, Scratch *scratch) {
    Tally tally = {0};
    read_weights(work, group, draw, lanes, scratch, &tally);
    for (int side = 0; side < SIDES; side++) rank_levels(work, group, side, lanes, scratch, &tally);
    add_products(work, group, lanes, scratch, &tally);
    for (int lane = 0; lane < lanes && draw + lane < work->of.draws; lane++) {
        double *result = work->result + ((draw + lane) * work->of.groups + group) * 5;
        result[0] = tally.squares[HUMAN][lane];
        result[1] = tally.squares[METRIC][lane];
        result[2] = tally.product[lane];
        result[3] = tally.drawn[HUMAN][lane];
        result[4] = tally.drawn[METRIC][lane];
    }
}

int multiply_ranks(const RankWork *work) {
    int64_t lanes = work->of.draws == 1 ? 1 : LANES, size = largest_group(&work->of) * lanes;
    Scratch scratch = {room(size, sizeof(double)), {room(size, sizeof(double)), room(size, sizeof(double))}};
    int failed = scratch.weight == NULL || scratch.rank[HUMAN] == NULL || scratch.rank[METRIC] == NULL ? -1 : 0;
    for (int64_t draw = 0; draw < work->of.draws && !failed; draw += lanes) {
        for (int64_t group = 0; group < work->of.groups; group++) {
            /* Constants, so that the compiler makes one function of each width. */
            if (lanes == 1) rank_group(work, group, draw, 1, &scratch);
            else rank_group(work, group, draw, LANES, &scratch);
        }
    }
    free(scratch.weight), free(scratch.rank[HUMAN]), free(scratch.rank[METRIC]);
    return failed;
}
