/* Outputs in groups, weighed by many draws at once: pairs of them (pairs.c) and their ranks (ranks.c), offered to
 * Python in outputs_module.c. */
#ifndef METRIST_OUTPUTS_H
#define METRIST_OUTPUTS_H

#include "kernels.h"

/* Draws that are worked on side by side: what is done does not depend on the weights, so one walk serves them all. */
enum { LANES = 16 };

typedef struct {
    const int64_t *starts; /* group g is outputs starts[g] up to starts[g + 1] */
    int64_t groups;
    int64_t outputs;
    const double *weights; /* [draw][output] */
    int64_t draws;
} Weighed;

static inline int64_t largest_group(const Weighed *of) {
    int64_t largest = 0;
    for (int64_t group = 0; group < of->groups; group++) {
        int64_t size = of->starts[group + 1] - of->starts[group];
        if (size > largest) largest = size;
    }
    return largest;
}

typedef struct {
    Weighed of;            /* starts cut the order below */
    const int64_t *order;  /* outputs by group, then by metric */
    const int32_t *levels; /* of each in that order: its human level, from 0 in every group */
    const int64_t *lows;   /* of each in that order: where its tie window begins; never before its group, never down */
    int64_t *counts;       /* [draw][group][alike, opposed, tied by humans only, by the metric only, by both] */
} PairWork;

/* 0, or -1 when memory is short, or -2 when weights are not whole, negative, or add up to 2^31 or more. */
int count_pairs(const PairWork *work);

typedef struct {
    Weighed of;
    const int32_t *levels[2]; /* of each output: its human and its metric level, from 0 in every group */
    double *result; /* [draw][group][human squared, metric squared, product, human levels drawn, metric levels drawn] */
} RankWork;

int multiply_ranks(const RankWork *work);

PyObject *py_pair_counts(PyObject *self, PyObject *args);
PyObject *py_rank_comoments(PyObject *self, PyObject *args);

#endif
