/* Counting pairs of outputs: see pairs.c. */
#ifndef METRIST_PAIRS_H
#define METRIST_PAIRS_H

#include "kernels.h"

typedef struct {
    const int64_t *order;  /* outputs by group, then by metric */
    const int32_t *levels; /* of each in that order: its human level, from 0 in every group */
    const int64_t *lows;   /* of each in that order: where its tie window begins; never before its group, never down */
    const int64_t *starts; /* group g is starts[g] up to starts[g + 1] of that order */
    int64_t groups;
    int64_t outputs;
    const double *weights; /* [draw][output] */
    int64_t draws;
    int64_t *counts;       /* [draw][group][alike, opposed, tied by humans only, by the metric only, by both] */
} PairWork;

/* 0, or -1 when memory is short, or -2 when weights are not whole, negative, or add up to 2^31 or more. */
int count_pairs(const PairWork *work);

#endif
