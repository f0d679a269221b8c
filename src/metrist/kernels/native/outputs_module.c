/* The functions of pairs.c and ranks.c for Python: arguments are checked here, and the loops run without the GIL. */
#include "outputs.h"

enum { MOST = 6 };

static const char *BAD_WEIGHTS =
    "weights must be whole numbers, none negative, that add up to less than 2**31 in each draw";

static int64_t length(const Py_buffer *view, size_t size) { return view->len / (int64_t)size; }

static void release(Py_buffer *views, int count) {
    for (int i = 0; i < count; i++) PyBuffer_Release(&views[i]);
}

static int refuse(const char *why) {
    PyErr_SetString(PyExc_ValueError, why);
    return -1;
}

static int open_weighed(Weighed *of, const Py_buffer *starts, const Py_buffer *weights, int64_t outputs,
                        int64_t draws) {
    *of = (Weighed){starts->buf, length(starts, sizeof(int64_t)) - 1, outputs, weights->buf, draws};
    if (of->groups < 0 || of->starts[0] != 0 || of->starts[of->groups] != outputs || outputs >= INT32_MAX) {
        return refuse("starts must go from 0 to the number of outputs");
    }
    for (int64_t group = 0; group < of->groups; group++) {
        if (of->starts[group + 1] < of->starts[group]) return refuse("starts must not go down");
    }
    if (draws < 0 || (outputs && draws > INT64_MAX / 8 / outputs)) return refuse("so many draws cannot be");
    if (length(weights, sizeof(double)) != draws * outputs) return refuse("there must be a weight per draw and output");
    return 0;
}

static int check_levels(const Weighed *of, const int32_t *levels) {
    for (int64_t group = 0; group < of->groups; group++) {
        int64_t size = of->starts[group + 1] - of->starts[group];
        for (int64_t i = of->starts[group]; i < of->starts[group + 1]; i++) {
            if (levels[i] < 0 || levels[i] >= size) return refuse("a level must be less than its group is large");
        }
    }
    return 0;
}

static int check_arranged(const PairWork *work) {
    const Weighed *of = &work->of;
    for (int64_t group = 0; group < of->groups; group++) {
        for (int64_t i = of->starts[group]; i < of->starts[group + 1]; i++) {
            if (work->order[i] < 0 || work->order[i] >= of->outputs) return refuse("the order must name outputs");
            if (work->lows[i] < of->starts[group] || work->lows[i] > i) return refuse("a window must lie in its group");
        }
    }
    return check_levels(of, work->levels);
}

static int open_pair_work(PairWork *work, const Py_buffer *views, int64_t draws) {
    int64_t outputs = length(&views[0], sizeof(int64_t));
    if (open_weighed(&work->of, &views[3], &views[4], outputs, draws) < 0) return -1;
    work->order = views[0].buf, work->levels = views[1].buf, work->lows = views[2].buf, work->counts = views[5].buf;
    if (length(&views[1], sizeof(int32_t)) != outputs || length(&views[2], sizeof(int64_t)) != outputs) {
        return refuse("each output needs a level and a window");
    }
    if (length(&views[5], sizeof(int64_t)) != draws * work->of.groups * 5) return refuse("five counts a draw and group");
    return check_arranged(work);
}

PyObject *py_pair_counts(PyObject *self, PyObject *args) {
    (void)self;
    Py_buffer views[MOST];
    long long draws;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*w*L", &views[0], &views[1], &views[2], &views[3], &views[4], &views[5],
                          &draws)) {
        return NULL;
    }
    PairWork work;
    int failed = open_pair_work(&work, views, draws) < 0 ? -3 : 0;
    if (!failed) {
        Py_BEGIN_ALLOW_THREADS
        failed = count_pairs(&work);
        Py_END_ALLOW_THREADS
    }
    release(views, 6);
    if (failed == -2) refuse(BAD_WEIGHTS);
    if (failed == -1) PyErr_NoMemory();
    if (failed) return NULL;
    Py_RETURN_NONE;
}

static int open_rank_work(RankWork *work, const Py_buffer *views, int64_t draws) {
    int64_t outputs = length(&views[0], sizeof(int32_t));
    if (open_weighed(&work->of, &views[2], &views[3], outputs, draws) < 0) return -1;
    work->levels[0] = views[0].buf, work->levels[1] = views[1].buf, work->result = views[4].buf;
    if (length(&views[1], sizeof(int32_t)) != outputs) return refuse("each output needs a human and a metric level");
    if (length(&views[4], sizeof(double)) != draws * work->of.groups * 5) return refuse("five numbers a draw and group");
    return check_levels(&work->of, work->levels[0]) < 0 ? -1 : check_levels(&work->of, work->levels[1]);
}

PyObject *py_rank_comoments(PyObject *self, PyObject *args) {
    (void)self;
    Py_buffer views[MOST];
    long long draws;
    if (!PyArg_ParseTuple(args, "y*y*y*y*w*L", &views[0], &views[1], &views[2], &views[3], &views[4], &draws)) {
        return NULL;
    }
    RankWork work;
    int failed = open_rank_work(&work, views, draws) < 0 ? -3 : 0;
    if (!failed) {
        Py_BEGIN_ALLOW_THREADS
        failed = multiply_ranks(&work);
        Py_END_ALLOW_THREADS
    }
    release(views, 5);
    if (failed == -1) PyErr_NoMemory();
    if (failed) return NULL;
    Py_RETURN_NONE;
}
