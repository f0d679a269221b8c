/* Comoments of weighted midranks: see ranks.c. */
#ifndef METRIST_RANKS_H
#define METRIST_RANKS_H

#include "kernels.h"

typedef struct {
    const int32_t *levels[2]; /* of each output: its human and its metric level, from 0 in every group */
    const int64_t *starts;    /* group g is the outputs starts[g] up to starts[g + 1] */
    int64_t groups;
    int64_t outputs;
    const double *weights;    /* [draw][output] */
    int64_t draws;
    double *result; /* [draw][group][human squared, metric squared, product, human levels drawn, metric levels drawn] */
} RankWork;

/* 0, or -1 when memory is short. */
int multiply_all_ranks(const RankWork *work);

#endif
