/* The functions of windows.c for Python: arguments are checked here, and the loops run without the GIL. */
#include "windows.h"

#include <math.h>

enum { SCORES, LEVELS, WEIGHTS, STARTS, COLUMNS };

static int64_t length(const Py_buffer *view, size_t size) { return view->len / (int64_t)size; }

static void release(Py_buffer *views, int count) {
    for (int i = 0; i < count; i++) PyBuffer_Release(&views[i]);
}

static int refuse(const char *why) {
    PyErr_SetString(PyExc_ValueError, why);
    return -1;
}

static int check_ranked(const Ranked *ranked) {
    if (ranked->groups < 0 || ranked->starts[0] != 0 || ranked->starts[ranked->groups] != ranked->outputs) {
        return refuse("starts must go from 0 to the number of outputs");
    }
    for (int64_t group = 0; group < ranked->groups; group++) {
        if (ranked->starts[group] >= ranked->starts[group + 1]) return refuse("starts must go up");
        for (int64_t i = ranked->starts[group]; i < ranked->starts[group + 1]; i++) {
            if (ranked->levels[i] < 0 || ranked->levels[i] >= ranked->outputs) return refuse("a level is out of range");
            if (!isfinite(ranked->scores[i])) return refuse("scores must be finite");
            if (i > ranked->starts[group] && ranked->scores[i] < ranked->scores[i - 1]) {
                return refuse("scores must not go down in a group");
            }
        }
    }
    return 0;
}

static int open_ranked(const Py_buffer *views, Ranked *ranked) {
    *ranked = (Ranked){views[SCORES].buf,  views[LEVELS].buf,
                       views[WEIGHTS].buf, views[STARTS].buf,
                       length(&views[SCORES], sizeof(double)), length(&views[STARTS], sizeof(int64_t)) - 1};
    if (length(&views[LEVELS], sizeof(int32_t)) != ranked->outputs ||
        length(&views[WEIGHTS], sizeof(int64_t)) != ranked->outputs || ranked->outputs >= INT32_MAX) {
        return refuse("scores, levels and weights must have one entry per output");
    }
    return check_ranked(ranked);
}

static int check_stretch(const Ranked *ranked, const Py_buffer *units, const Stretch *stretch) {
    if (length(units, sizeof(int64_t)) != ranked->groups) return refuse("units must have one entry per group");
    if (!(stretch->origin >= 0 && stretch->origin <= stretch->low && stretch->low < stretch->high)) {
        return refuse("a stretch needs 0 <= origin <= low < high");
    }
    if (!(stretch->scale >= 0) || stretch->buckets < 1 || stretch->buckets > INT32_MAX / 4) {
        return refuse("buckets need a scale of at least 0, and must be neither none nor too many");
    }
    return 0;
}

PyObject *py_beyond_counts(PyObject *self, PyObject *args) {
    (void)self;
    Py_buffer views[COLUMNS + 2];
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*w*", &views[0], &views[1], &views[2], &views[3], &views[4], &views[5])) {
        return NULL;
    }
    Ranked ranked;
    int64_t count = length(&views[4], sizeof(double));
    int failed = open_ranked(views, &ranked);
    if (!failed && length(&views[5], sizeof(int64_t)) != count * ranked.groups * 3) {
        failed = refuse("the result must have three places per threshold and group");
    }
    if (!failed) {
        Py_BEGIN_ALLOW_THREADS
        failed = count_beyond(&ranked, views[4].buf, count, views[5].buf);
        Py_END_ALLOW_THREADS
        if (failed) PyErr_NoMemory();
    }
    release(views, COLUMNS + 2);
    if (failed) return NULL;
    Py_RETURN_NONE;
}

PyObject *py_gap_histogram(PyObject *self, PyObject *args) {
    (void)self;
    Py_buffer views[COLUMNS + 2];
    Stretch stretch;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*ddddw*", &views[0], &views[1], &views[2], &views[3], &views[4], &stretch.low,
                          &stretch.high, &stretch.origin, &stretch.scale, &views[5])) {
        return NULL;
    }
    Ranked ranked;
    stretch.buckets = length(&views[5], 3 * sizeof(int64_t));
    int failed = open_ranked(views, &ranked) || check_stretch(&ranked, &views[4], &stretch);
    if (!failed) {
        Py_BEGIN_ALLOW_THREADS
        failed = fill_buckets(&ranked, views[4].buf, &stretch, views[5].buf);
        Py_END_ALLOW_THREADS
        if (failed) PyErr_NoMemory();
    }
    release(views, COLUMNS + 2);
    if (failed) return NULL;
    Py_RETURN_NONE;
}

PyObject *py_gaps_kept(PyObject *self, PyObject *args) {
    (void)self;
    Py_buffer views[COLUMNS + 4];
    Stretch stretch;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*ddddy*w*w*", &views[0], &views[1], &views[2], &views[3], &views[4],
                          &stretch.low, &stretch.high, &stretch.origin, &stretch.scale, &views[5], &views[6],
                          &views[7])) {
        return NULL;
    }
    Ranked ranked;
    stretch.buckets = length(&views[5], 1);
    Kept kept = {views[6].buf, views[7].buf, length(&views[6], sizeof(double)), 0};
    int failed = open_ranked(views, &ranked) || check_stretch(&ranked, &views[4], &stretch);
    if (!failed && length(&views[7], sizeof(int64_t)) != kept.room) failed = refuse("as many gains as gaps");
    if (!failed) {
        Py_BEGIN_ALLOW_THREADS
        failed = keep_gaps(&ranked, views[4].buf, &stretch, views[5].buf, &kept);
        Py_END_ALLOW_THREADS
        if (failed) PyErr_NoMemory();
    }
    release(views, COLUMNS + 4);
    return failed ? NULL : PyLong_FromLongLong(kept.count);
}

static int check_prefixes(const Prefixes *prefixes) {
    for (int64_t i = 0; i < prefixes->count; i++) {
        if (prefixes->groups[i] < 0 || prefixes->groups[i] >= prefixes->width) return refuse("a group is out of range");
    }
    for (int64_t end = 0; end < prefixes->ends; end++) {
        if (prefixes->lasts[end] < 0 || prefixes->lasts[end] >= prefixes->count) return refuse("an end is out of range");
    }
    return 0;
}

PyObject *py_best_prefixes(PyObject *self, PyObject *args) {
    (void)self;
    Py_buffer views[6];
    if (!PyArg_ParseTuple(args, "y*y*y*y*w*w*", &views[0], &views[1], &views[2], &views[3], &views[4], &views[5])) {
        return NULL;
    }
    int64_t count = length(&views[0], sizeof(double)), draws = length(&views[4], sizeof(double));
    Prefixes prefixes = {views[0].buf, views[1].buf, count, views[2].buf, length(&views[2], sizeof(int64_t)),
                         views[3].buf, draws, draws ? length(&views[3], sizeof(double)) / draws : 0};
    int failed = length(&views[1], sizeof(int32_t)) != count || length(&views[5], sizeof(int64_t)) != draws ||
                         length(&views[3], sizeof(double)) != draws * prefixes.width
                     ? refuse("one group per gain, and one result per row of weights")
                     : check_prefixes(&prefixes);
    if (!failed) {
        Py_BEGIN_ALLOW_THREADS
        find_best_prefixes(&prefixes, views[4].buf, views[5].buf);
        Py_END_ALLOW_THREADS
    }
    release(views, 6);
    if (failed) return NULL;
    Py_RETURN_NONE;
}
