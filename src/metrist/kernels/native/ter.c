/* Translation edit rate: Tercom's greedy search for moves, in the form that sacrebleu gave it (Apache-2.0), with the
 * same limits and the same order among equals. metrist/kernels/twin/ter.py says the same in Python.
 *
 * A move keeps the output's length, hence the beam, hence all rows before the first word that it changes; and once a row
 * behind the last changed word differs from the loaded output's by the same amount everywhere, so does the distance.
 * A candidate costs only the rows between. */
#include <math.h>
#include <string.h>
#include "kernels.h"

#define LONGEST_MOVE 10
#define FARTHEST_MOVE 50
#define BEAM 25
#define MOST_CANDIDATES 1000
#define NEVER (INT32_MAX / 2)

enum { KEEP, SUBSTITUTE, DROP, ADD };

typedef struct {
    int64_t low, high; /* columns looked at: low up to high */
    int64_t at;        /* of column `low`, in costs and choices */
} Beam;

typedef struct {
    int64_t gain, length, start, target;
} Move;

typedef struct {
    int32_t *words, *moved; /* the loaded output, and a candidate */
    int64_t length;
    Span reference;
    Beam *beams;     /* by row */
    int32_t *costs;  /* rows of the loaded output's table */
    uint8_t *choices;
    int32_t *rows[2]; /* two rows of a candidate's */
    int64_t *aligned; /* by reference word: the output word that it is set against, or the last before it */
    uint8_t *wrong_output, *wrong_reference;
    int64_t words_room, moved_room, beams_room, costs_room, choices_room, row_rooms[2], aligned_room, wrong_rooms[2];
} Ter;

/* ---- The table ---- */

static inline int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }

static int lay_beams(Ter *t) {
    int64_t n = t->length, end = t->reference.length + 1, at = end, widest = end;
    double ratio = n ? (double)t->reference.length / (double)n : 1.0;
    int64_t width = ratio / 2 > BEAM ? (int64_t)ceil(ratio / 2 + BEAM) : BEAM;
    if (make_room((void **)&t->beams, &t->beams_room, n + 1, sizeof(Beam)) < 0) return -1;
    t->beams[0] = (Beam){0, end, 0};
    for (int64_t i = 1; i <= n; i++) {
        int64_t diagonal = (int64_t)floor((double)i * ratio);
        int64_t low = diagonal > width ? diagonal - width : 0;
        int64_t high = i == n || diagonal + width > end ? end : diagonal + width;
        t->beams[i] = (Beam){low, high, at};
        at += high - low;
        if (high - low > widest) widest = high - low;
    }
    if (make_room((void **)&t->costs, &t->costs_room, at, sizeof(int32_t)) < 0) return -1;
    if (make_room((void **)&t->choices, &t->choices_room, at, 1) < 0) return -1;
    for (int k = 0; k < 2; k++) {
        if (make_room((void **)&t->rows[k], &t->row_rooms[k], widest, sizeof(int32_t)) < 0) return -1;
    }
    for (int64_t j = 0; j < end; j++) t->costs[j] = (int32_t)j, t->choices[j] = ADD;
    return 0;
}

/* One row from the one above. Columns outside the beam cost NEVER. */
static void fill_row(const Ter *t, int64_t i, int32_t word, const int32_t *above, int32_t *row) {
    Beam here = t->beams[i], over = t->beams[i - 1];
    const int32_t *reference = t->reference.at;
    int32_t left = NEVER;
    int64_t j = here.low;
    if (j == 0) row[0] = left = above[0] + 1, j = 1;
    int64_t inside = here.high < over.high ? here.high : over.high;
    for (; j < inside; j++) {
        int32_t diagonal = (j > over.low ? above[j - 1 - over.low] : NEVER) + (word != reference[j - 1]);
        left = least(least(diagonal, above[j - over.low] + 1), left + 1);
        row[j - here.low] = left;
    }
    for (; j < here.high; j++) {
        int32_t diagonal = (j == over.high ? above[j - 1 - over.low] : NEVER) + (word != reference[j - 1]);
        left = least(least(diagonal, left + 1), NEVER);
        row[j - here.low] = left;
    }
}

/* Which edit each cell chose: among equals keep or substitute, then drop, then add. */
static void choose(const Ter *t, int64_t i, int32_t word, const int32_t *above, const int32_t *row, uint8_t *choices) {
    Beam here = t->beams[i], over = t->beams[i - 1];
    for (int64_t j = here.low; j < here.high; j++) {
        int keeps = j > 0 && word == t->reference.at[j - 1];
        int32_t cost = row[j - here.low];
        int32_t diagonal = j > over.low && j <= over.high ? above[j - 1 - over.low] + !keeps : NEVER;
        int32_t up = j >= over.low && j < over.high ? above[j - over.low] + 1 : NEVER;
        choices[j - here.low] = cost == diagonal ? (keeps ? KEEP : SUBSTITUTE) : cost == up ? DROP : ADD;
    }
}

static int32_t *row_of(const Ter *t, int64_t i) { return t->costs + t->beams[i].at; }

static int32_t distance(const Ter *t) { return row_of(t, t->length)[t->reference.length - t->beams[t->length].low]; }

/* Computes the loaded output's rows, from the first word that changed. */
static void fill_table(Ter *t, int64_t changed) {
    for (int64_t i = changed + 1; i <= t->length; i++) {
        fill_row(t, i, t->words[i - 1], row_of(t, i - 1), row_of(t, i));
        choose(t, i, t->words[i - 1], row_of(t, i - 1), row_of(t, i), t->choices + t->beams[i].at);
    }
}

/* Whether two rows differ by one amount everywhere. NEVER in one must be NEVER in the other. */
static int runs_beside(const int32_t *row, const int32_t *other, int64_t width) {
    int32_t apart = row[0] - other[0];
    for (int64_t j = 0; j < width; j++) {
        if (row[j] - other[j] != apart || row[j] >= NEVER || other[j] >= NEVER) return 0;
    }
    return 1;
}

/* The distance of t->moved, which differs from the loaded output only between `first` and `last`. */
static int32_t distance_of_moved(Ter *t, int64_t first, int64_t last) {
    const int32_t *above = row_of(t, first);
    for (int64_t i = first + 1; i <= t->length; i++) {
        int32_t *row = t->rows[i & 1];
        fill_row(t, i, t->moved[i - 1], above, row);
        if (i >= last && runs_beside(row, row_of(t, i), t->beams[i].high - t->beams[i].low)) {
            return distance(t) + row[0] - row_of(t, i)[0];
        }
        above = row;
    }
    return t->length == first ? distance(t) : above[t->reference.length - t->beams[t->length].low];
}

static void align(Ter *t) {
    int64_t i = t->length, j = t->reference.length;
    memset(t->wrong_output, 1, (size_t)i);
    memset(t->wrong_reference, 1, (size_t)j);
    while (i > 0 || j > 0) {
        int choice = i == 0 ? ADD : j == 0 ? DROP : t->choices[t->beams[i].at + j - t->beams[i].low];
        if (choice != DROP) t->aligned[j - 1] = i - 1;
        if (choice == KEEP) t->wrong_output[i - 1] = t->wrong_reference[j - 1] = 0;
        i -= choice != ADD;
        j -= choice != DROP;
    }
}

/* ---- Moves ---- */

typedef struct {
    int64_t first, last;
} Changed;

/* Writes words[] with the run moved to moved[], all of it inside the words that change. */
static Changed move_words(const int32_t *words, int32_t *moved, int64_t n, Move m) {
    int64_t end = m.start + m.length, size = sizeof(int32_t);
    if (m.target < m.start) {
        memcpy(moved + m.target, words + m.start, (size_t)(m.length * size));
        memcpy(moved + m.target + m.length, words + m.target, (size_t)((m.start - m.target) * size));
        return (Changed){m.target, end};
    }
    /* A target inside the moved run counts from the run's end. */
    int64_t stop = m.target > end ? m.target : m.target + m.length;
    if (stop > n) stop = n;
    memcpy(moved + m.start, words + end, (size_t)((stop - end) * size));
    memcpy(moved + m.start + stop - end, words + m.start, (size_t)(m.length * size));
    return (Changed){m.start, stop};
}

static int32_t distance_after(Ter *t, Move move) {
    Changed changed = move_words(t->words, t->moved, t->length, move);
    int32_t found = distance_of_moved(t, changed.first, changed.last);
    memcpy(t->moved + changed.first, t->words + changed.first, (size_t)(changed.last - changed.first) * sizeof(int32_t));
    return found;
}

static int better(Move a, Move b) {
    if (a.gain != b.gain) return a.gain > b.gain;
    if (a.length != b.length) return a.length > b.length;
    if (a.start != b.start) return a.start < b.start;
    return a.target < b.target;
}

static int any(const uint8_t *flags, int64_t start, int64_t length) {
    return memchr(flags + start, 1, (size_t)length) != NULL;
}

/* Tries the run at every place where the words around its match are; counts the tries. */
static void try_run(Ter *t, Move run, int64_t match, Move *best, int64_t *tried) {
    int64_t previous = -1;
    for (int64_t position = match - 1; position < match + run.length; position++) {
        run.target = position < 0 ? 0 : t->aligned[position] + 1;
        if (run.target != previous) {
            run.gain = distance(t) - distance_after(t, run);
            if (best->length == 0 || better(run, *best)) *best = run;
            ++*tried;
        }
        previous = run.target;
    }
}

/* Tries every length of the run that starts at `start` and occurs at `match`. */
static void try_lengths(Ter *t, int64_t start, int64_t match, Move *best, int64_t *tried) {
    for (int64_t length = 1; length <= LONGEST_MOVE && *tried < MOST_CANDIDATES; length++) {
        if (start + length > t->length || match + length > t->reference.length) return;
        if (t->words[start + length - 1] != t->reference.at[match + length - 1]) return;
        if (!any(t->wrong_output, start, length) || !any(t->wrong_reference, match, length)) continue;
        if (start <= t->aligned[match] && t->aligned[match] < start + length) continue;
        try_run(t, (Move){.start = start, .length = length}, match, best, tried);
    }
}

static Move best_move(Ter *t, int64_t *tried) {
    Move best = {0};
    for (int64_t start = 0; start < t->length && *tried < MOST_CANDIDATES; start++) {
        int64_t ahead = t->length - start < LONGEST_MOVE ? t->length - start : LONGEST_MOVE;
        if (!any(t->wrong_output, start, ahead)) continue;
        int64_t match = start > FARTHEST_MOVE ? start - FARTHEST_MOVE : 0;
        int64_t end = start + FARTHEST_MOVE + 1 < t->reference.length ? start + FARTHEST_MOVE + 1 : t->reference.length;
        for (; match < end && *tried < MOST_CANDIDATES; match++) {
            if (t->words[start] == t->reference.at[match]) try_lengths(t, start, match, &best, tried);
        }
    }
    return best;
}

/* ---- The search ---- */

static int load(Ter *t, Span output, Span reference) {
    t->length = output.length;
    t->reference = reference;
    if (output.length >= NEVER / 2 || reference.length >= NEVER / 2) return -1;
    if (make_room((void **)&t->words, &t->words_room, output.length, sizeof(int32_t)) < 0) return -1;
    if (make_room((void **)&t->moved, &t->moved_room, output.length, sizeof(int32_t)) < 0) return -1;
    if (make_room((void **)&t->aligned, &t->aligned_room, reference.length, sizeof(int64_t)) < 0) return -1;
    if (make_room((void **)&t->wrong_output, &t->wrong_rooms[0], output.length, 1) < 0) return -1;
    if (make_room((void **)&t->wrong_reference, &t->wrong_rooms[1], reference.length, 1) < 0) return -1;
    memcpy(t->words, output.at, (size_t)output.length * sizeof(int32_t));
    memcpy(t->moved, output.at, (size_t)output.length * sizeof(int32_t));
    return lay_beams(t);
}

static int64_t search(Ter *t) {
    int64_t moves = 0, tried = 0;
    fill_table(t, 0);
    for (;;) {
        align(t);
        Move best = best_move(t, &tried);
        /* At the limit the search ends at once: even a move already found to be good is not made. */
        if (tried >= MOST_CANDIDATES || best.gain <= 0) return moves + distance(t);
        Changed changed = move_words(t->words, t->moved, t->length, best);
        memcpy(t->words + changed.first, t->moved + changed.first, (size_t)(changed.last - changed.first) * sizeof(int32_t));
        fill_table(t, changed.first);
        moves++;
    }
}

static int edits_of(Ter *t, Span output, Span reference, int64_t *edits) {
    if (output.length == 0 || reference.length == 0) {
        *edits = output.length + reference.length;
        return 0;
    }
    if (load(t, output, reference) < 0) return -1;
    *edits = search(t);
    return 0;
}

int count_ter_edits(const Texts *texts, const int32_t *outputs, const int32_t *references, int64_t pairs, int64_t *edits) {
    Ter t = {0};
    int failed = 0;
    for (int64_t p = 0; p < pairs && !failed; p++) {
        failed = edits_of(&t, text_of(texts, outputs[p]), text_of(texts, references[p]), &edits[p]);
    }
    free(t.words), free(t.moved), free(t.beams), free(t.costs), free(t.choices), free(t.rows[0]), free(t.rows[1]);
    free(t.aligned), free(t.wrong_output), free(t.wrong_reference);
    return failed;
}
