/* ROUGE-Lsum: the tokens of a reference's lines that lie on a longest common subsequence with any line of the output.
 *
 * rouge-score reads one subsequence out of its table from the end: equal tokens are taken, otherwise the reference is
 * stepped back unless that would lose length. Whether it would is the bit that a block keeps. The walk goes through the
 * blocks from the last to the first, so each is computed again when the walk reaches it, from the carries of the block
 * before; of these only every `stride`-th set is kept for long, the others are made again when needed.
 *
 * Texts of many lines: an output's line is looked at once however often it occurs, and only for reference lines that
 * share a token with it, and only until every token of the reference line is hit. */
#include "lcs.h"

#define MANY_LINES 16

typedef struct {
    int64_t first, last;
} Lines;

typedef struct {
    int64_t line;
    int32_t next;
} Node;

typedef struct {
    const Texts *texts;
    uint64_t *masks;
    uint64_t *rows; /* of the block at hand, one per token of the other line */
    uint8_t *kept;  /* carries into the blocks 0, stride, 2 stride, ... */
    uint8_t *near;  /* carries into the blocks from one of those to the next */
    uint8_t *hit;   /* by position in the reference line */
    int64_t missed; /* how many are not hit yet */
    int64_t rows_room, kept_room, near_room, hit_room;
    /* by token: how often it may still be counted */
    int32_t *left, *in_output;
    /* which lines of the output hold a token: a chain of nodes from heads[token] - 1 on, to a `next` of 0 */
    int32_t *heads;
    Node *nodes;
    int64_t *buckets, *seen;
    int64_t nodes_room, buckets_room, seen_room;
} Union;

/* ---- The walk ---- */

/* Runs a block from the carries at `in`, leaving its own at `out` (which may be `in`), and its rows at `rows`. */
static void run_block(const uint64_t *masks, Span other, const uint8_t *in, uint8_t *out, uint64_t *rows) {
    uint64_t row = FULL;
    for (int64_t j = 0; j < other.length; j++) {
        uint64_t carry = in[j];
        row = carried_step(row, masks[other.at[j]], &carry);
        if (out != NULL) out[j] = (uint8_t)carry;
        if (rows != NULL) rows[j] = row;
    }
}

/* Walks back through one block, whose rows are there, and `columns` of the other line; returns how many are left. */
static int64_t walk(Union *u, Span line, int64_t block, Span other, int64_t columns) {
    const int32_t *pattern = line.at + block * 64;
    int i = block_width(line.length, block * 64) - 1;
    int64_t j = columns - 1;
    while (i >= 0 && j >= 0) {
        if (pattern[i] == other.at[j]) {
            u->missed -= !u->hit[block * 64 + i];
            u->hit[block * 64 + i] = 1;
            i--, j--;
        } else if (u->rows[j] >> i & 1) {
            i--;
        } else {
            j--;
        }
    }
    return j + 1;
}

/* Lines of at most 64 tokens, whose masks are set. */
static int mark_common_short(Union *u, Span line, Span other) {
    if (make_room((void **)&u->rows, &u->rows_room, other.length, sizeof(uint64_t)) < 0) return -1;
    uint64_t row = FULL;
    for (int64_t j = 0; j < other.length; j++) u->rows[j] = row = step(row, u->masks[other.at[j]]);
    walk(u, line, 0, other, other.length);
    return 0;
}

static void run_masked(Union *u, Span line, int64_t block, Span other, const uint8_t *in, uint8_t *out, uint64_t *rows) {
    int width = block_width(line.length, block * 64);
    set_masks(u->masks, line.at + block * 64, width);
    run_block(u->masks, other, in, out, rows);
    clear_masks(u->masks, line.at + block * 64, width);
}

static int64_t stride_for(int64_t blocks) {
    int64_t stride = 1;
    while (stride * stride < blocks) stride++;
    return stride;
}

static int reserve(Union *u, Span other, int64_t blocks, int64_t stride) {
    int64_t far = (blocks + stride - 1) / stride;
    if (other.length && far > INT64_MAX / other.length) return -1;
    if (make_room((void **)&u->rows, &u->rows_room, other.length, sizeof(uint64_t)) < 0) return -1;
    if (make_room((void **)&u->kept, &u->kept_room, far * other.length, 1) < 0) return -1;
    return make_room((void **)&u->near, &u->near_room, stride * other.length, 1);
}

static int mark_common_long(Union *u, Span line, Span other) {
    int64_t blocks = (line.length + 63) / 64, stride = stride_for(blocks), m = other.length;
    int64_t final = (blocks - 1) / stride * stride;
    if (m == 0) return 0;
    if (reserve(u, other, blocks, stride) < 0) return -1;
    memset(u->kept, 0, (size_t)m);
    memset(u->near, 0, (size_t)m);
    for (int64_t block = 0; block < final; block++) {
        run_masked(u, line, block, other, u->near, u->near, NULL);
        if ((block + 1) % stride == 0) memcpy(u->kept + (block + 1) / stride * m, u->near, (size_t)m);
    }
    int64_t j = m;
    for (int64_t first = final; first >= 0 && j > 0; first -= stride) {
        int64_t last = first + stride < blocks ? first + stride : blocks;
        memcpy(u->near, u->kept + first / stride * m, (size_t)m);
        for (int64_t block = first; block + 1 < last; block++) {
            uint8_t *in = u->near + (block - first) * m;
            run_masked(u, line, block, (Span){other.at, j}, in, in + m, NULL);
        }
        for (int64_t block = last - 1; block >= first && j > 0; block--) {
            run_masked(u, line, block, (Span){other.at, j}, u->near + (block - first) * m, NULL, u->rows);
            j = walk(u, line, block, other, j);
        }
    }
    return 0;
}

/* ---- Which lines of the output matter ---- */

static uint64_t hash_of(Span span) {
    uint64_t hash = (uint64_t)span.length;
    for (int64_t i = 0; i < span.length; i++) {
        hash = (hash ^ (uint32_t)span.at[i]) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 32;
    }
    return hash;
}

/* Whether the line is the first of its kind among those entered. */
static int is_new(Union *u, int64_t line, uint64_t mask) {
    Span span = text_of(u->texts, line);
    uint64_t at = hash_of(span) & mask;
    for (; u->buckets[at] >= 0; at = (at + 1) & mask) {
        Span other = text_of(u->texts, u->buckets[at]);
        if (other.length == span.length && memcmp(other.at, span.at, (size_t)span.length * sizeof(int32_t)) == 0) return 0;
    }
    u->buckets[at] = line;
    return 1;
}

/* Chains, for each token of the output, the distinct lines that hold it. */
static int index_lines(Union *u, Lines output) {
    int64_t count = output.last - output.first;
    int64_t tokens = u->texts->starts[output.last] - u->texts->starts[output.first];
    int64_t size = (int64_t)power_above((uint64_t)count * 2);
    int32_t nodes = 0;
    if (tokens >= INT32_MAX || make_room((void **)&u->nodes, &u->nodes_room, tokens, sizeof(Node)) < 0) return -1;
    if (make_room((void **)&u->buckets, &u->buckets_room, size, sizeof(int64_t)) < 0) return -1;
    if (make_room((void **)&u->seen, &u->seen_room, count, sizeof(int64_t)) < 0) return -1;
    memset(u->buckets, -1, (size_t)size * sizeof(int64_t));
    memset(u->seen, -1, (size_t)count * sizeof(int64_t));
    for (int64_t line = output.first; line < output.last; line++) {
        Span span = text_of(u->texts, line);
        if (!is_new(u, line, (uint64_t)size - 1)) continue;
        for (int64_t i = 0; i < span.length; i++) {
            u->nodes[nodes] = (Node){line, u->heads[span.at[i]]};
            u->heads[span.at[i]] = ++nodes;
        }
    }
    return 0;
}

static int mark_common(Union *u, Span line, Span other) {
    return line.length <= 64 ? mark_common_short(u, line, other) : mark_common_long(u, line, other);
}

static int mark_indexed(Union *u, int64_t reference, Lines output) {
    Span line = text_of(u->texts, reference);
    for (int64_t i = 0; i < line.length; i++) {
        for (int32_t n = u->heads[line.at[i]]; n && u->missed; n = u->nodes[n - 1].next) {
            int64_t other = u->nodes[n - 1].line;
            if (u->seen[other - output.first] == reference) continue;
            u->seen[other - output.first] = reference;
            if (mark_common(u, line, text_of(u->texts, other)) < 0) return -1;
        }
    }
    return 0;
}

static int mark_all(Union *u, int64_t reference, Lines output) {
    for (int64_t other = output.first; other < output.last && u->missed; other++) {
        if (mark_common(u, text_of(u->texts, reference), text_of(u->texts, other)) < 0) return -1;
    }
    return 0;
}

/* Finds which tokens of a reference line are hit. */
static int mark_line(Union *u, int64_t reference, Lines output) {
    Span line = text_of(u->texts, reference);
    if (make_room((void **)&u->hit, &u->hit_room, line.length + 1, 1) < 0) return -1;
    memset(u->hit, 0, (size_t)line.length);
    u->missed = line.length;
    if (line.length <= 64) set_masks(u->masks, line.at, (int)line.length);
    int many = output.last - output.first > MANY_LINES;
    int failed = many ? mark_indexed(u, reference, output) : mark_all(u, reference, output);
    if (line.length <= 64) clear_masks(u->masks, line.at, (int)line.length);
    return failed;
}

/* ---- Hits ---- */

static int64_t count_hits(Union *u, Span line) {
    int64_t hits = 0;
    for (int64_t i = 0; i < line.length; i++) {
        if (u->hit[i] && u->left[line.at[i]] > 0) {
            u->left[line.at[i]]--;
            hits++;
        }
    }
    return hits;
}

static Span tokens_of(const Union *u, Lines lines) {
    int64_t start = u->texts->starts[lines.first];
    return (Span){u->texts->ids + start, u->texts->starts[lines.last] - start};
}

/* A token counts as often as it occurs on the side where it is rarer. */
static void count_tokens(Union *u, Span output, Span reference) {
    for (int64_t k = 0; k < output.length; k++) u->in_output[output.at[k]]++;
    for (int64_t k = 0; k < reference.length; k++) {
        int32_t token = reference.at[k];
        if (u->in_output[token] > 0) u->in_output[token]--, u->left[token]++;
    }
}

static void forget_tokens(Union *u, Span output, Span reference) {
    for (int64_t k = 0; k < output.length; k++) u->in_output[output.at[k]] = 0, u->heads[output.at[k]] = 0;
    for (int64_t k = 0; k < reference.length; k++) u->left[reference.at[k]] = 0;
}

static int union_hits(Union *u, Lines output, Lines reference, int64_t *hits) {
    int failed = output.last - output.first > MANY_LINES ? index_lines(u, output) : 0;
    *hits = 0;
    count_tokens(u, tokens_of(u, output), tokens_of(u, reference));
    for (int64_t line = reference.first; line < reference.last && !failed; line++) {
        failed = mark_line(u, line, output);
        if (!failed) *hits += count_hits(u, text_of(u->texts, line));
    }
    forget_tokens(u, tokens_of(u, output), tokens_of(u, reference));
    return failed;
}

int count_union_hits(const Texts *lines, const int64_t *line_starts, const int32_t *outputs, const int32_t *references,
                     int64_t pairs, int64_t *hits) {
    Union u = {.texts = lines,
               .masks = zeroed_room(lines->distinct, sizeof(uint64_t)),
               .left = zeroed_room(lines->distinct, sizeof(int32_t)),
               .in_output = zeroed_room(lines->distinct, sizeof(int32_t)),
               .heads = zeroed_room(lines->distinct, sizeof(int32_t))};
    int failed = u.masks == NULL || u.left == NULL || u.in_output == NULL || u.heads == NULL ? -1 : 0;
    for (int64_t p = 0; p < pairs && !failed; p++) {
        Lines output = {line_starts[outputs[p]], line_starts[outputs[p] + 1]};
        Lines reference = {line_starts[references[p]], line_starts[references[p] + 1]};
        failed = union_hits(&u, output, reference, &hits[p]);
    }
    free(u.masks), free(u.left), free(u.in_output), free(u.heads), free(u.nodes), free(u.buckets), free(u.seen);
    free(u.rows), free(u.kept), free(u.near), free(u.hit);
    return failed;
}
