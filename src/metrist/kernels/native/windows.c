/* Pairs of outputs by the gap between their scores.
 *
 * In a group that is sorted by score, the outputs that lie more than a gap below one of them are those before its
 * window, and the window's start only moves forward. Rounded differences keep their order, so this holds for them too. */
#include "windows.h"

#include <string.h>

/* ---- How many pairs lie further apart than a threshold ---- */

/* Tables of at most this many places (64 MiB), and only for so many thresholds that filling one pays. */
enum { TABLE = 1 << 24, WORTH_A_TABLE = 4 };

typedef struct {
    int64_t *tree;   /* Fenwick tree over levels + 1: weight of the outputs before the window */
    int64_t *level;  /* the same by level */
    uint32_t *below; /* [place][level]: weight before that place of the group on lower levels; NULL where too large */
} Passed;

typedef struct {
    int64_t start, end;
    int32_t levels;
} Group;

static Group group_of(const Ranked *ranked, int64_t number) {
    Group group = {ranked->starts[number], ranked->starts[number + 1], 0};
    for (int64_t i = group.start; i < group.end; i++) {
        if (ranked->levels[i] >= group.levels) group.levels = ranked->levels[i] + 1;
    }
    return group;
}

static void count_by_tree(const Ranked *ranked, Group group, double epsilon, Passed *passed, int64_t *counts) {
    int64_t tied = 0, concordant = 0, all = 0, weight_passed = 0, next = group.start;
    memset(passed->tree, 0, ((size_t)group.levels + 1) * sizeof(int64_t));
    memset(passed->level, 0, (size_t)group.levels * sizeof(int64_t));
    for (int64_t i = group.start; i < group.end; i++) {
        for (; next < i && ranked->scores[i] - ranked->scores[next] > epsilon; next++) {
            int64_t weight = ranked->weights[next];
            for (int32_t node = ranked->levels[next] + 1; node <= group.levels; node += node & -node) {
                passed->tree[node] += weight;
            }
            passed->level[ranked->levels[next]] += weight;
            weight_passed += weight;
        }
        int64_t lower = 0;
        for (int32_t node = ranked->levels[i]; node > 0; node &= node - 1) lower += passed->tree[node];
        tied += ranked->weights[i] * passed->level[ranked->levels[i]];
        concordant += ranked->weights[i] * lower;
        all += ranked->weights[i] * weight_passed;
    }
    counts[0] = tied, counts[1] = concordant, counts[2] = all;
}

/* 0 where the group and its levels are too many, or its weight is too great, for the table. */
static int fill_table(const Ranked *ranked, Group group, uint32_t *below) {
    int64_t width = group.levels + 1, total = 0;
    if (below == NULL || (group.end - group.start + 1) > TABLE / width) return 0;
    for (int64_t i = group.start; i < group.end; i++) total += ranked->weights[i];
    if (total > UINT32_MAX) return 0;
    memset(below, 0, (size_t)width * sizeof(uint32_t));
    for (int64_t i = group.start; i < group.end; i++, below += width) {
        memcpy(below + width, below, (size_t)width * sizeof(uint32_t));
        for (int32_t level = ranked->levels[i] + 1; level < width; level++) {
            below[width + level] += (uint32_t)ranked->weights[i];
        }
    }
    return 1;
}

static void count_by_table(const Ranked *ranked, Group group, double epsilon, const uint32_t *below, int64_t *counts) {
    int64_t tied = 0, concordant = 0, all = 0, next = group.start, width = group.levels + 1;
    for (int64_t i = group.start; i < group.end; i++) {
        while (next < i && ranked->scores[i] - ranked->scores[next] > epsilon) next++;
        const uint32_t *row = below + (next - group.start) * width;
        int32_t level = ranked->levels[i];
        tied += ranked->weights[i] * (int64_t)(row[level + 1] - row[level]);
        concordant += ranked->weights[i] * (int64_t)row[level];
        all += ranked->weights[i] * (int64_t)row[group.levels];
    }
    counts[0] = tied, counts[1] = concordant, counts[2] = all;
}

static uint32_t *room_for_tables(const Ranked *ranked) {
    int64_t most = 0;
    for (int64_t number = 0; number < ranked->groups; number++) {
        Group group = group_of(ranked, number);
        int64_t height = group.end - group.start + 1, width = group.levels + 1;
        if (height <= TABLE / width && height * width > most) most = height * width;
    }
    return most ? room(most, sizeof(uint32_t)) : NULL;
}

int count_beyond(const Ranked *ranked, const double *epsilons, int64_t count, int64_t *counts) {
    Passed passed = {.tree = room(ranked->outputs + 1, sizeof(int64_t)),
                     .level = room(ranked->outputs + 1, sizeof(int64_t)),
                     .below = count < WORTH_A_TABLE ? NULL : room_for_tables(ranked)};
    int failed = passed.tree == NULL || passed.level == NULL ? -1 : 0;
    for (int64_t number = 0; number < ranked->groups && !failed; number++) {
        Group group = group_of(ranked, number);
        int table = fill_table(ranked, group, passed.below);
        for (int64_t e = 0; e < count; e++) {
            int64_t *cells = counts + (e * ranked->groups + number) * 3;
            if (table) count_by_table(ranked, group, epsilons[e], passed.below, cells);
            else count_by_tree(ranked, group, epsilons[e], &passed, cells);
        }
    }
    free(passed.tree), free(passed.level), free(passed.below);
    return failed;
}

/* ---- Every pair of a stretch of gaps ---- */

typedef struct {
    int64_t later;
    int64_t first, end; /* outputs that lie a gap of the stretch below `later` */
    int64_t worth;      /* of a pair with an output of weight 1 */
} Row;

/* Moves on to the next output of the group; `first` and `end` never move back. */
static inline void next_row(const Ranked *ranked, const Stretch *stretch, Row *row) {
    double score = ranked->scores[row->later];
    while (score - ranked->scores[row->first] > stretch->high) row->first++;
    while (row->end < row->later && score - ranked->scores[row->end] > stretch->low) row->end++;
}

static inline int64_t bucket_of(const Stretch *stretch, double gap) {
    double place = (gap - stretch->origin) * stretch->scale;
    return place < (double)stretch->buckets ? (int64_t)place : stretch->buckets - 1;
}

/* Cells of a table of three columns: 0 tied, 1 concordant, 2 discordant. Without a branch, for no one could foretell
 * it, and apart from the counting, so that the compiler can do several at a time. */
static inline void find_cells(const Ranked *ranked, const Stretch *stretch, int64_t later, int64_t first, int64_t count,
                              int32_t *cells) {
    const double *scores = ranked->scores + first, score = ranked->scores[later], origin = stretch->origin;
    const int32_t *levels = ranked->levels + first, level = ranked->levels[later];
    const double scale = stretch->scale, last = (double)(stretch->buckets - 1);
    for (int64_t i = 0; i < count; i++) {
        double place = (score - scores[i] - origin) * scale;
        place = place < last ? place : last;
        cells[i] = 3 * (int32_t)place + (levels[i] < level) + 2 * (levels[i] > level);
    }
}

enum { CELLS = 1024 };

typedef struct {
    int64_t *table;
    uint32_t *small; /* the same for pairs that are all worth one unit: half the size, emptied before it can overflow */
    int64_t counted;
} Cells;

static void pour(const Stretch *stretch, Cells *cells, int64_t unit) {
    for (int64_t cell = 0; cell < 3 * stretch->buckets; cell++) {
        cells->table[cell] += unit * (int64_t)cells->small[cell];
        cells->small[cell] = 0;
    }
    cells->counted = 0;
}

static void fill_row(const Ranked *ranked, const Stretch *stretch, const Row *row, Cells *cells) {
    int32_t found[CELLS];
    for (int64_t first = row->first; first < row->end; first += CELLS) {
        int64_t count = row->end - first < CELLS ? row->end - first : CELLS;
        find_cells(ranked, stretch, row->later, first, count, found);
        if (cells->small != NULL) {
            for (int64_t i = 0; i < count; i++) cells->small[found[i]]++;
            cells->counted += count;
        } else {
            for (int64_t i = 0; i < count; i++) cells->table[found[i]] += row->worth * ranked->weights[first + i];
        }
    }
}

static int all_alike(const Ranked *ranked, const int64_t *units) {
    for (int64_t i = 0; i < ranked->outputs; i++) {
        if (ranked->weights[i] != 1) return 0;
    }
    for (int64_t group = 1; group < ranked->groups; group++) {
        if (units[group] != units[0]) return 0;
    }
    return ranked->groups > 0;
}

int fill_buckets(const Ranked *ranked, const int64_t *units, const Stretch *stretch, int64_t *table) {
    int alike = all_alike(ranked, units);
    Cells cells = {.table = table, .small = alike ? zeroed_room(3 * stretch->buckets, sizeof(uint32_t)) : NULL};
    if (alike && cells.small == NULL) return -1;
    for (int64_t group = 0; group < ranked->groups; group++) {
        int64_t start = ranked->starts[group];
        Row row = {.first = start, .end = start};
        for (row.later = start; row.later < ranked->starts[group + 1]; row.later++) {
            next_row(ranked, stretch, &row);
            row.worth = units[group] * ranked->weights[row.later];
            fill_row(ranked, stretch, &row, &cells);
            /* A row counts fewer than 2^31 pairs. */
            if (cells.counted > INT32_MAX) pour(stretch, &cells, units[0]);
        }
    }
    if (alike) pour(stretch, &cells, units[0]);
    free(cells.small);
    return 0;
}

/* Pairs of one gap come near each other, and scores with few digits have few gaps: equal ones are added up in a small
 * table, each in the one slot that its bits choose, until another gap wants that slot. */
enum { SLOT_BITS = 12 };

typedef struct {
    double gaps[1 << SLOT_BITS]; /* 0 where free: no gap of a stretch is 0 */
    int64_t gains[1 << SLOT_BITS];
    Kept *kept;
} Slots;

static void put_out(Kept *kept, double gap, int64_t gain) {
    if (kept->count < kept->room) kept->gaps[kept->count] = gap, kept->gains[kept->count] = gain;
    kept->count++;
}

static inline void add_gap(Slots *slots, double gap, int64_t gain) {
    uint64_t bits;
    memcpy(&bits, &gap, sizeof bits);
    uint64_t slot = bits * 0x9E3779B97F4A7C15u >> (64 - SLOT_BITS);
    if (slots->gaps[slot] != gap) {
        if (slots->gaps[slot] != 0) put_out(slots->kept, slots->gaps[slot], slots->gains[slot]);
        slots->gaps[slot] = gap, slots->gains[slot] = 0;
    }
    slots->gains[slot] += gain;
}

int keep_gaps(const Ranked *ranked, const int64_t *units, const Stretch *stretch, const uint8_t *keep, Kept *kept) {
    Slots *slots = zeroed_room(1, sizeof(Slots));
    if (slots == NULL) return -1;
    slots->kept = kept;
    for (int64_t group = 0; group < ranked->groups && kept->count <= kept->room; group++) {
        int64_t start = ranked->starts[group];
        Row row = {.first = start, .end = start};
        for (row.later = start; row.later < ranked->starts[group + 1] && kept->count <= kept->room; row.later++) {
            next_row(ranked, stretch, &row);
            double score = ranked->scores[row.later];
            int32_t level = ranked->levels[row.later];
            row.worth = units[group] * ranked->weights[row.later];
            for (int64_t i = row.first; i < row.end; i++) {
                double gap = score - ranked->scores[i];
                if (!keep[bucket_of(stretch, gap)] || ranked->levels[i] > level) continue;
                int64_t worth = row.worth * ranked->weights[i];
                add_gap(slots, gap, ranked->levels[i] == level ? worth : -worth);
            }
        }
    }
    for (int slot = 0; slot < 1 << SLOT_BITS; slot++) {
        if (slots->gaps[slot] != 0) put_out(kept, slots->gaps[slot], slots->gains[slot]);
    }
    free(slots);
    return 0;
}

/* ---- The best threshold of many draws ---- */

void find_best_prefixes(const Prefixes *prefixes, double *best, int64_t *at) {
    for (int64_t draw = 0; draw < prefixes->draws; draw++) {
        const double *weights = prefixes->weights + draw * prefixes->width;
        double sum = 0;
        int64_t i = 0;
        best[draw] = 0, at[draw] = -1;
        for (int64_t end = 0; end < prefixes->ends; end++) {
            for (; i <= prefixes->lasts[end]; i++) sum += prefixes->gains[i] * weights[prefixes->groups[i]];
            if (sum > best[draw]) best[draw] = sum, at[draw] = end;
        }
    }
}
