/* Pairs of outputs by the gap between their scores: see windows.c; offered to Python in windows_module.c. */
#ifndef METRIST_WINDOWS_H
#define METRIST_WINDOWS_H

#include "kernels.h"

typedef struct {
    const double *scores;   /* ascending in every group */
    const int32_t *levels;  /* human levels, from 0 and below `outputs`; of equal scores the highest comes first */
    const int64_t *weights;
    const int64_t *starts;  /* group g is starts[g] up to starts[g + 1] */
    int64_t outputs;
    int64_t groups;
} Ranked;

typedef struct {
    double low, high;     /* gaps above low and at most high */
    double origin, scale; /* a gap falls into bucket (gap - origin) * scale, or into the last */
    int64_t buckets;
} Stretch;

int count_beyond(const Ranked *ranked, const double *epsilons, int64_t count, int64_t *counts);
int fill_buckets(const Ranked *ranked, const int64_t *units, const Stretch *stretch, int64_t *table);

typedef struct {
    double *gaps;
    int64_t *gains;
    int64_t room, count; /* count goes above room where there was too little of it */
} Kept;

int keep_gaps(const Ranked *ranked, const int64_t *units, const Stretch *stretch, const uint8_t *keep, Kept *kept);

typedef struct {
    const double *gains;
    const int32_t *groups; /* one per gain */
    int64_t count;
    const int64_t *lasts;  /* ascending places among the gains */
    int64_t ends;
    const double *weights; /* [draw][group] */
    int64_t draws;
    int64_t width;         /* groups */
} Prefixes;

void find_best_prefixes(const Prefixes *prefixes, double *best, int64_t *at);

PyObject *py_beyond_counts(PyObject *self, PyObject *args);
PyObject *py_gap_histogram(PyObject *self, PyObject *args);
PyObject *py_gaps_kept(PyObject *self, PyObject *args);
PyObject *py_best_prefixes(PyObject *self, PyObject *args);

#endif
