/* Pairs of outputs by the gap between their scores.
 *
 * In a group that is sorted by score, the outputs that lie more than a gap below one of them are those before its
 * window, and the window's start only moves forward. Rounded differences keep their order, so this holds for them too. */
#include "windows.h"

#include <string.h>

/* ---- How many pairs lie further apart than a threshold ---- */

typedef struct {
    int64_t *tree;  /* Fenwick tree over levels + 1: weight of the outputs before the window */
    int64_t *level; /* the same by level */
} Passed;

static int32_t count_levels(const Ranked *ranked, int64_t group) {
    int32_t greatest = -1;
    for (int64_t i = ranked->starts[group]; i < ranked->starts[group + 1]; i++) {
        if (ranked->levels[i] > greatest) greatest = ranked->levels[i];
    }
    return greatest + 1;
}

static void count_group(const Ranked *ranked, int64_t group, int32_t levels, double epsilon, Passed *passed,
                        int64_t *counts) {
    int64_t next = ranked->starts[group], end = ranked->starts[group + 1];
    int64_t tied = 0, concordant = 0, all = 0, weight_passed = 0;
    memset(passed->tree, 0, ((size_t)levels + 1) * sizeof(int64_t));
    memset(passed->level, 0, (size_t)levels * sizeof(int64_t));
    for (int64_t i = next; i < end; i++) {
        for (; next < i && ranked->scores[i] - ranked->scores[next] > epsilon; next++) {
            int64_t weight = ranked->weights[next];
            for (int32_t node = ranked->levels[next] + 1; node <= levels; node += node & -node) {
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

int count_beyond(const Ranked *ranked, const double *epsilons, int64_t count, int64_t *counts) {
    Passed passed = {.tree = room(ranked->outputs + 1, sizeof(int64_t)), .level = room(ranked->outputs, sizeof(int64_t))};
    int failed = ranked->outputs && (passed.tree == NULL || passed.level == NULL) ? -1 : 0;
    for (int64_t group = 0; group < ranked->groups && !failed; group++) {
        int32_t levels = count_levels(ranked, group);
        for (int64_t e = 0; e < count; e++) {
            count_group(ranked, group, levels, epsilons[e], &passed, counts + (e * ranked->groups + group) * 3);
        }
    }
    free(passed.tree), free(passed.level);
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
    double place = (gap - stretch->low) * stretch->scale;
    return place < (double)stretch->buckets ? (int64_t)place : stretch->buckets - 1;
}

void fill_buckets(const Ranked *ranked, const int64_t *units, const Stretch *stretch, int64_t *table) {
    for (int64_t group = 0; group < ranked->groups; group++) {
        int64_t start = ranked->starts[group];
        Row row = {.first = start, .end = start};
        for (row.later = start; row.later < ranked->starts[group + 1]; row.later++) {
            next_row(ranked, stretch, &row);
            double score = ranked->scores[row.later];
            int32_t level = ranked->levels[row.later];
            row.worth = units[group] * ranked->weights[row.later];
            for (int64_t i = row.first; i < row.end; i++) {
                /* 0 tied, 1 concordant, 2 discordant: without a branch, for no one could foretell it. */
                int relation = (ranked->levels[i] < level) + 2 * (ranked->levels[i] > level);
                int64_t *cells = table + 4 * bucket_of(stretch, score - ranked->scores[i]);
                cells[relation] += row.worth * ranked->weights[i];
                cells[3] += relation < 2;
            }
        }
    }
}

int64_t keep_gaps(const Ranked *ranked, const int64_t *units, const Stretch *stretch, const uint8_t *keep, double *gaps,
                  int64_t *gains, int64_t room_for) {
    int64_t kept = 0;
    for (int64_t group = 0; group < ranked->groups; group++) {
        int64_t start = ranked->starts[group];
        Row row = {.first = start, .end = start};
        for (row.later = start; row.later < ranked->starts[group + 1]; row.later++) {
            next_row(ranked, stretch, &row);
            double score = ranked->scores[row.later];
            int32_t level = ranked->levels[row.later];
            row.worth = units[group] * ranked->weights[row.later];
            for (int64_t i = row.first; i < row.end; i++) {
                double gap = score - ranked->scores[i];
                if (!keep[bucket_of(stretch, gap)] || ranked->levels[i] > level) continue;
                if (kept < room_for) {
                    int64_t worth = row.worth * ranked->weights[i];
                    gaps[kept] = gap;
                    gains[kept] = ranked->levels[i] == level ? worth : -worth;
                }
                kept++;
            }
        }
    }
    return kept;
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
