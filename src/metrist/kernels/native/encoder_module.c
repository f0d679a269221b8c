/* The functions of encoder.c for Python: arguments are checked here, and the loops run without the GIL. */
#include "encoder.h"

static const EncoderFunctions *chosen;

/* The best functions but for so many. */
static const EncoderFunctions *best_functions(long without) {
    const EncoderFunctions *best = without < 1 ? amx_functions() : NULL;
    if (best == NULL && without < 2) best = avx512_functions();
    return best != NULL ? best : lane_functions();
}

static int64_t length(const Py_buffer *view) { return view->len / (int64_t)sizeof(float); }

static void release(Py_buffer *views, int count) {
    for (int i = 0; i < count; i++) PyBuffer_Release(&views[i]);
}

static int refuse(const char *why) {
    PyErr_SetString(PyExc_ValueError, why);
    return -1;
}

/* What the processor can do best, unless `py_limit_encoder` chose otherwise. */
static const EncoderFunctions *functions(void) { return chosen != NULL ? chosen : (chosen = best_functions(0)); }

static int check_supported(void) {
    return functions() != NULL ? 0 : refuse("this processor lacks the instructions of the encoder's kernels");
}

static const float *optional(const Py_buffer *view) { return view->len ? view->buf : NULL; }

static PyObject *finish(int failed, Py_buffer *views, int count) {
    release(views, count);
    if (PyErr_Occurred()) return NULL;
    if (failed) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* 0: no encoder; 1: one digit; 2: two digits in linear layers; 3: in attention too. */
PyObject *py_encoder_level(PyObject *self, PyObject *args) {
    (void)self, (void)args;
    if (functions() == NULL) return PyLong_FromLong(0);
    return PyLong_FromLong(functions()->digits + (functions()->attend_finely != NULL));
}

/* For tests: 0 chooses what the processor can do best, 1 leaves AMX out, 2 AVX-512 too; returns whether that makes a
 * difference here. */
PyObject *py_limit_encoder(PyObject *self, PyObject *without) {
    (void)self;
    long limit = PyLong_AsLong(without);
    if (limit == -1 && PyErr_Occurred()) return NULL;
    chosen = best_functions(limit);
    return PyBool_FromLong(chosen != best_functions(0));
}

static int open_linear(Linear *linear, const Py_buffer *views, int64_t block) {
    int64_t count;
    linear->weights = views[0].buf, linear->scales = views[1].buf, linear->bias = optional(&views[2]);
    linear->block = block, linear->second = NULL;
    if (check_supported() < 0) return -1;
    if (linear->inputs < 1 || linear->outputs < 1 || block < 16 || block % 16 || linear->inputs % block ||
        linear->outputs % PANEL || linear->inputs > INT32_MAX || linear->outputs > INT32_MAX) {
        return refuse("inputs must be blocks of a multiple of 16, and outputs a multiple of 16");
    }
    count = linear->inputs / block * linear->outputs;
    if (views[0].len != linear->inputs * linear->outputs || length(&views[1]) != count) {
        return refuse("weights and scales must have the size of the layer");
    }
    if (views[2].len && length(&views[2]) != linear->outputs) return refuse("there must be a bias per output, or none");
    count = length(&views[3]) / linear->inputs;
    if (length(&views[3]) != count * linear->inputs || length(&views[4]) != count * linear->outputs) {
        return refuse("the result must have a row per row of inputs");
    }
    return 0;
}

PyObject *py_apply_linear(PyObject *self, PyObject *args) {
    (void)self;
    Py_buffer views[5];
    Linear linear;
    long long inputs, outputs, block;
    int digits, gelu, failed = 0;
    if (!PyArg_ParseTuple(args, "y*y*y*y*w*LLLip", &views[0], &views[1], &views[2], &views[3], &views[4], &inputs,
                          &outputs, &block, &digits, &gelu)) {
        return NULL;
    }
    linear.inputs = inputs, linear.outputs = outputs;
    if (open_linear(&linear, views, block) == 0 && (digits == 1 || digits == functions()->digits ||
                                                    refuse("this processor has no kernels for so many digits") == 0)) {
        Py_BEGIN_ALLOW_THREADS
        failed = functions()->apply_linear(&linear, views[3].buf, length(&views[3]) / inputs, digits, gelu, views[4].buf);
        Py_END_ALLOW_THREADS
    }
    return finish(failed, views, 5);
}

static int check_attention(const Py_buffer *views, int64_t heads, int64_t width) {
    const int64_t *starts = views[1].buf;
    int64_t texts = views[1].len / (int64_t)sizeof(int64_t) - 1, hidden = heads * width;
    if (check_supported() < 0) return -1;
    if (heads < 1 || width < 16 || width % 16 || heads > INT32_MAX || width > MAX_HEAD) {
        return refuse("a head's width must be a multiple of 16, at most 256");
    }
    if (texts < 0 || starts[0] != 0) return refuse("starts must begin with 0");
    for (int64_t text = 0; text < texts; text++) {
        if (starts[text + 1] < starts[text]) return refuse("starts must not go down");
        if (starts[text + 1] - starts[text] > MAX_LENGTH) return refuse("a text must have at most 131,072 tokens");
        if (views[2].len && length(&views[2]) < (starts[text + 1] - starts[text]) * width) {
            return refuse("there must be a turn per position, or none");
        }
    }
    if (starts[texts] > INT32_MAX || length(&views[0]) != starts[texts] * 3 * hidden ||
        length(&views[3]) != starts[texts] * hidden) {
        return refuse("queries, keys, values and result must have a row per token");
    }
    return 0;
}

PyObject *py_attend(PyObject *self, PyObject *args) {
    (void)self;
    Py_buffer views[4];
    long long heads, width;
    int failed = 0;
    if (!PyArg_ParseTuple(args, "y*y*y*w*LL", &views[0], &views[1], &views[2], &views[3], &heads, &width)) return NULL;
    if (check_attention(views, heads, width) == 0) {
        const int64_t *starts = views[1].buf;
        int64_t texts = views[1].len / (int64_t)sizeof(int64_t) - 1, hidden = heads * width;
        Py_BEGIN_ALLOW_THREADS
        for (int64_t text = 0; text < texts && !failed; text++) {
            failed = functions()->attend((const float *)views[0].buf + starts[text] * 3 * hidden, starts[text + 1] - starts[text],
                            heads, width, optional(&views[2]), (float *)views[3].buf + starts[text] * hidden);
        }
        Py_END_ALLOW_THREADS
    }
    return finish(failed, views, 4);
}

/* `spans` has the first query and key of each text and those after the last. */
static int check_fine_attention(const Py_buffer *views, int64_t heads, const int64_t columns[2]) {
    const int64_t *span = views[2].buf, *end = span + views[2].len / (int64_t)sizeof(int64_t) / 4 * 4, hidden = heads * 64;
    if (check_supported() < 0) return -1;
    if (functions()->attend_finely == NULL) return refuse("this processor has no kernel for attention with two digits");
    if (heads < 1 || heads > INT32_MAX || columns[0] < hidden || columns[1] < 2 * hidden) {
        return refuse("queries must have a row for all heads, and the memory one for their keys and values");
    }
    for (; span < end; span += 4) {
        int64_t queries = span[1] - span[0], keys = span[3] - span[2], distances = length(&views[3]) / heads;
        if (span[0] < 0 || queries < 0 || span[1] > length(&views[0]) / columns[0] || span[1] > length(&views[4]) / hidden ||
            span[2] < 0 || keys < 1 || span[3] > length(&views[1]) / columns[1] || keys > MAX_LENGTH) {
            return refuse("texts must lie within queries, memory and result");
        }
        if (distances && (queries > keys || 2 * keys - 1 > distances)) {
            return refuse("there must be a bias for each distance, or none");
        }
    }
    return 0;
}

PyObject *py_attend_finely(PyObject *self, PyObject *args) {
    (void)self;
    Py_buffer views[5];
    long long heads, given[2];
    int failed = 0;
    if (!PyArg_ParseTuple(args, "y*y*y*y*w*LLL", &views[0], &views[1], &views[2], &views[3], &views[4], &heads, &given[0],
                          &given[1])) {
        return NULL;
    }
    const int64_t columns[2] = {given[0], given[1]};
    if (check_fine_attention(views, heads, columns) == 0) {
        const int64_t *span = views[2].buf, hidden = heads * 64, strides[3] = {columns[0], columns[1], hidden};
        int64_t texts = views[2].len / (int64_t)sizeof(int64_t) / 4, distances = length(&views[3]) / heads;
        Py_BEGIN_ALLOW_THREADS
        for (int64_t i = 0; i < texts * heads && !failed; i++) {
            const int64_t *own = span + i / heads * 4, at = i % heads * 64, counts[2] = {own[1] - own[0], own[3] - own[2]};
            const float *keys = (const float *)views[1].buf + (own[2] + 1) * columns[1] - 2 * hidden + at;
            /* The first query is so many places after the first key. */
            const float *bias = (const float *)views[3].buf + i % heads * distances + distances / 2 - (counts[1] - counts[0]);
            failed = functions()->attend_finely((const float *)views[0].buf + own[0] * columns[0] + at, keys, keys + hidden,
                                                counts, strides, distances ? bias : NULL,
                                                (float *)views[4].buf + own[0] * hidden + at);
        }
        Py_END_ALLOW_THREADS
    }
    return finish(failed, views, 5);
}

PyObject *py_add_and_normalize(PyObject *self, PyObject *args) {
    (void)self;
    Py_buffer views[4];
    float epsilon;
    if (!PyArg_ParseTuple(args, "w*y*y*y*f", &views[0], &views[1], &views[2], &views[3], &epsilon)) return NULL;
    int64_t width = length(&views[2]);
    if (check_supported() == 0) {
        if (width < 8 || width % 8 || length(&views[3]) != width || length(&views[0]) % width ||
            (views[1].len && views[1].len != views[0].len)) {
            refuse("rows must have the width of weight and bias, a multiple of 8");
        } else {
            Py_BEGIN_ALLOW_THREADS
            functions()->add_and_normalize(views[0].buf, optional(&views[1]), length(&views[0]) / width, width, views[2].buf,
                              views[3].buf, epsilon);
            Py_END_ALLOW_THREADS
        }
    }
    return finish(0, views, 4);
}

/* Both gates: `unit` divides the width. */
static PyObject *gate(PyObject *args, int64_t unit, int gelu) {
    Py_buffer views[2];
    long long width;
    if (!PyArg_ParseTuple(args, "y*w*L", &views[0], &views[1], &width)) return NULL;
    if (check_supported() == 0) {
        int64_t count = width > 0 ? length(&views[1]) / width : 0;
        if (width < unit || width % unit || length(&views[1]) != count * width || length(&views[0]) != 2 * count * width) {
            refuse("each row of the result must have two rows of inputs, of a multiple of 8 numbers, or 16 with GELU");
        } else {
            Py_BEGIN_ALLOW_THREADS
            (gelu ? functions()->gate_by_gelu : functions()->gate_rows)(views[0].buf, count, width, views[1].buf);
            Py_END_ALLOW_THREADS
        }
    }
    return finish(0, views, 2);
}

PyObject *py_gate_rows(PyObject *self, PyObject *args) {
    (void)self;
    return gate(args, 8, 0);
}

PyObject *py_gate_by_gelu(PyObject *self, PyObject *args) {
    (void)self;
    return gate(args, 16, 1);
}

PyObject *py_exponentiate_rows(PyObject *self, PyObject *args) {
    (void)self;
    Py_buffer views[3];
    if (!PyArg_ParseTuple(args, "w*w*w*", &views[0], &views[1], &views[2])) return NULL;
    if (check_supported() == 0) {
        int64_t count = length(&views[1]), width = count > 0 ? length(&views[0]) / count : 0;
        if (length(&views[2]) != count || length(&views[0]) != count * width || (count > 0 && width < 1)) {
            refuse("each row must have a largest number and a sum");
        } else {
            Py_BEGIN_ALLOW_THREADS
            functions()->exponentiate_rows(views[0].buf, count, width, views[1].buf, views[2].buf);
            Py_END_ALLOW_THREADS
        }
    }
    return finish(0, views, 3);
}
