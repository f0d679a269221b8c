/* Longest common subsequences, bit-parallel (Hyyrö 2004), 64 tokens of the pattern at a time.
 *
 * A block keeps one word: bit i is 0 where the length grows from the pattern's first i tokens to its first i + 1. It
 * runs over the whole other text, taking at each step the carry of the block before it and leaving its own, so that
 * memory is linear in the texts however long they are. */
#include <string.h>
#include "kernels.h"

#define FULL (~(uint64_t)0)

typedef struct {
    uint64_t *masks; /* by token: where it occurs in the block at hand; all zero between blocks */
    uint8_t *carries;
    int64_t carries_room;
} Lcs;

static void set_masks(uint64_t *masks, const int32_t *block, int width) {
    for (int i = 0; i < width; i++) masks[block[i]] |= (uint64_t)1 << i;
}

static void clear_masks(uint64_t *masks, const int32_t *block, int width) {
    for (int i = 0; i < width; i++) masks[block[i]] = 0;
}

/* One step of a block: the next row from the last, with the carry in bit 0 of *carry. */
static inline uint64_t step(uint64_t row, uint64_t mask, uint64_t *carry) {
    uint64_t shared = row & mask;
    uint64_t sum = row + shared;
    uint64_t over = sum < row;
    sum += *carry;
    *carry = over | (sum < *carry);
    return sum | (row - shared);
}

/* All rows of a block but the last are thrown away. `carries` may be NULL when there is no block before or after. */
static uint64_t last_row(const uint64_t *masks, Span other, uint8_t *carries) {
    uint64_t row = FULL;
    if (carries == NULL) {
        for (int64_t j = 0; j < other.length; j++) {
            uint64_t shared = row & masks[other.at[j]];
            row = (row + shared) | (row - shared);
        }
        return row;
    }
    for (int64_t j = 0; j < other.length; j++) {
        uint64_t carry = carries[j];
        row = step(row, masks[other.at[j]], &carry);
        carries[j] = (uint8_t)carry;
    }
    return row;
}

static int block_width(int64_t length, int64_t start) { return length - start < 64 ? (int)(length - start) : 64; }

static int64_t grown_bits(uint64_t row, int width) {
    uint64_t valid = width == 64 ? FULL : ((uint64_t)1 << width) - 1;
    return __builtin_popcountll(~row & valid);
}

static int64_t lcs_work(int64_t pattern, int64_t other) { return (pattern + 63) / 64 * (other + 64); }

static int lcs_length(Lcs *lcs, Span a, Span b, int64_t *length) {
    int64_t common = 0;
    while (a.length && b.length && a.at[0] == b.at[0]) a.at++, b.at++, a.length--, b.length--, common++;
    while (a.length && b.length && a.at[a.length - 1] == b.at[b.length - 1]) a.length--, b.length--, common++;
    int a_first = lcs_work(a.length, b.length) <= lcs_work(b.length, a.length);
    Span pattern = a_first ? a : b, other = a_first ? b : a;
    uint8_t *carries = NULL;
    if (pattern.length > 64) {
        if (make_room((void **)&lcs->carries, &lcs->carries_room, other.length, 1) < 0) return -1;
        carries = lcs->carries;
        memset(carries, 0, (size_t)other.length);
    }
    for (int64_t start = 0; start < pattern.length; start += 64) {
        int width = block_width(pattern.length, start);
        set_masks(lcs->masks, pattern.at + start, width);
        common += grown_bits(last_row(lcs->masks, other, carries), width);
        clear_masks(lcs->masks, pattern.at + start, width);
    }
    *length = common;
    return 0;
}

int measure_lcs(const Texts *texts, const int32_t *outputs, const int32_t *references, int64_t pairs, int64_t *lengths) {
    Lcs lcs = {zeroed_room(texts->distinct, sizeof(uint64_t)), NULL, 0};
    int failed = lcs.masks == NULL ? -1 : 0;
    for (int64_t p = 0; p < pairs && !failed; p++) {
        failed = lcs_length(&lcs, text_of(texts, references[p]), text_of(texts, outputs[p]), &lengths[p]);
    }
    free(lcs.masks);
    free(lcs.carries);
    return failed;
}

/* ---- Which tokens lie on it: the union over an output's lines ----
 *
 * rouge-score reads one longest subsequence out of its table from the end: equal tokens are taken, otherwise the
 * reference is stepped back unless that would lose length. Whether it would is the bit that the block keeps. The walk
 * goes through the blocks from the last to the first, so each is computed again when the walk reaches it, from the
 * carries of the block before; of these only every `stride`-th set is kept for long, the others again when needed. */

typedef struct {
    Lcs lcs;
    uint64_t *rows;      /* of the block at hand, one per token of the other line */
    int64_t rows_room;
    uint8_t *kept;       /* carries into the blocks 0, stride, 2 stride, ... */
    int64_t kept_room;
    uint8_t *near;       /* carries into the blocks from one of those to the next */
    int64_t near_room;
    uint8_t *hit;        /* by position in the reference line */
    int64_t hit_room;
    int32_t *left;       /* by token: how often it may still be counted */
    int32_t *in_output;
} Union;

/* Runs a block from the carries at `in`, leaving its own at `out` (which may be `in`), and its rows at `rows`. */
static void run_block(const uint64_t *masks, Span other, const uint8_t *in, uint8_t *out, uint64_t *rows) {
    uint64_t row = FULL;
    for (int64_t j = 0; j < other.length; j++) {
        uint64_t carry = in[j];
        row = step(row, masks[other.at[j]], &carry);
        if (out != NULL) out[j] = (uint8_t)carry;
        if (rows != NULL) rows[j] = row;
    }
}

static void pass_carries(Union *u, Span line, Span other, int64_t block, const uint8_t *in, uint8_t *out) {
    int width = block_width(line.length, block * 64);
    set_masks(u->lcs.masks, line.at + block * 64, width);
    run_block(u->lcs.masks, other, in, out, NULL);
    clear_masks(u->lcs.masks, line.at + block * 64, width);
}

/* Walks back through one block from column *j; marks the tokens taken. */
static void walk_block(Union *u, Span line, Span other, int64_t block, int64_t *j, const uint8_t *carries) {
    int width = block_width(line.length, block * 64);
    const int32_t *pattern = line.at + block * 64;
    set_masks(u->lcs.masks, pattern, width);
    run_block(u->lcs.masks, (Span){other.at, *j}, carries, NULL, u->rows);
    clear_masks(u->lcs.masks, pattern, width);
    int i = width - 1;
    int64_t column = *j - 1;
    while (i >= 0 && column >= 0) {
        if (pattern[i] == other.at[column]) {
            u->hit[block * 64 + i] = 1;
            i--, column--;
        } else if (u->rows[column] >> i & 1) {
            i--;
        } else {
            column--;
        }
    }
    *j = column + 1;
}

static int reserve(Union *u, Span other, int64_t blocks, int64_t stride) {
    int64_t far = (blocks + stride - 1) / stride;
    if (other.length && far > INT64_MAX / other.length) return -1;
    if (make_room((void **)&u->rows, &u->rows_room, other.length, sizeof(uint64_t)) < 0) return -1;
    if (make_room((void **)&u->kept, &u->kept_room, far * other.length, 1) < 0) return -1;
    return make_room((void **)&u->near, &u->near_room, stride * other.length, 1);
}

static int64_t stride_for(int64_t blocks) {
    int64_t stride = 1;
    while (stride * stride < blocks) stride++;
    return stride;
}

/* Marks in u->hit the tokens of `line` on its longest common subsequence with `other`. */
static int mark_common(Union *u, Span line, Span other) {
    int64_t blocks = (line.length + 63) / 64, stride = stride_for(blocks), m = other.length;
    if (blocks == 0 || m == 0) return 0;
    if (reserve(u, other, blocks, stride) < 0) return -1;
    memset(u->kept, 0, (size_t)m);
    memset(u->near, 0, (size_t)m);
    int64_t final = (blocks - 1) / stride * stride;
    for (int64_t block = 0; block < final; block++) {
        pass_carries(u, line, other, block, u->near, u->near);
        if ((block + 1) % stride == 0) memcpy(u->kept + (block + 1) / stride * m, u->near, (size_t)m);
    }
    int64_t j = m;
    for (int64_t first = final; first >= 0 && j > 0; first -= stride) {
        int64_t last = first + stride < blocks ? first + stride : blocks;
        memcpy(u->near, u->kept + first / stride * m, (size_t)m);
        for (int64_t block = first; block + 1 < last; block++) {
            uint8_t *in = u->near + (block - first) * m;
            pass_carries(u, line, (Span){other.at, j}, block, in, in + m);
        }
        for (int64_t block = last - 1; block >= first && j > 0; block--) {
            walk_block(u, line, other, block, &j, u->near + (block - first) * m);
        }
    }
    return 0;
}

typedef struct {
    int64_t first, last;
} Lines;

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

/* A token counts as often as it occurs on the side where it is rarer. */
static void count_tokens(Union *u, const Texts *texts, Lines output, Lines reference) {
    for (int64_t k = texts->starts[output.first]; k < texts->starts[output.last]; k++) u->in_output[texts->ids[k]]++;
    for (int64_t k = texts->starts[reference.first]; k < texts->starts[reference.last]; k++) {
        int32_t token = texts->ids[k];
        if (u->in_output[token] > 0) u->in_output[token]--, u->left[token]++;
    }
}

static void forget_tokens(Union *u, const Texts *texts, Lines output, Lines reference) {
    for (int64_t k = texts->starts[output.first]; k < texts->starts[output.last]; k++) u->in_output[texts->ids[k]] = 0;
    for (int64_t k = texts->starts[reference.first]; k < texts->starts[reference.last]; k++) u->left[texts->ids[k]] = 0;
}

static int union_hits(Union *u, const Texts *texts, Lines output, Lines reference, int64_t *hits) {
    int failed = 0;
    *hits = 0;
    count_tokens(u, texts, output, reference);
    for (int64_t r = reference.first; r < reference.last && !failed; r++) {
        Span line = text_of(texts, r);
        if (make_room((void **)&u->hit, &u->hit_room, line.length, 1) < 0) failed = -1;
        if (!failed) memset(u->hit, 0, (size_t)line.length);
        for (int64_t o = output.first; o < output.last && !failed; o++) failed = mark_common(u, line, text_of(texts, o));
        if (!failed) *hits += count_hits(u, line);
    }
    forget_tokens(u, texts, output, reference);
    return failed;
}

int count_union_hits(const Texts *lines, const int64_t *line_starts, const int32_t *outputs, const int32_t *references,
                     int64_t pairs, int64_t *hits) {
    Union u = {.lcs = {.masks = zeroed_room(lines->distinct, sizeof(uint64_t))},
               .left = zeroed_room(lines->distinct, sizeof(int32_t)),
               .in_output = zeroed_room(lines->distinct, sizeof(int32_t))};
    int failed = u.lcs.masks == NULL || u.left == NULL || u.in_output == NULL ? -1 : 0;
    for (int64_t p = 0; p < pairs && !failed; p++) {
        Lines output = {line_starts[outputs[p]], line_starts[outputs[p] + 1]};
        Lines reference = {line_starts[references[p]], line_starts[references[p] + 1]};
        failed = union_hits(&u, lines, output, reference, &hits[p]);
    }
    free(u.lcs.masks), free(u.left), free(u.in_output);
    free(u.rows), free(u.kept), free(u.near), free(u.hit);
    return failed;
}
