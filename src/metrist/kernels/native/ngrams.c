/* N-grams that an output shares with its references.
 *
 * Groups that have texts in common are counted together, one order at a time. An n-gram of a reference gets a number:
 * it is known by the number of its first n - 1 tokens and its last token, so a key is exact and has one size, and a
 * table holds only one order, small enough for the nearest cache. Where an n-gram occurs again in a text, each
 * occurrence has a number of its own: the second one has the same number in all texts. So a text is a set of numbers,
 * a row of bits, and matches are the bits that two rows share, however often the texts are paired. An output's position
 * whose n-gram is in no reference is dropped, and the other way round: no longer n-gram from there can match. */
#include <string.h>
#include "kernels.h"

/* Groups are counted together up to about so many tokens in their texts and bits in their rows: with more references
 * the table leaves the nearest caches, with more outputs the rows do. */
#define MANY_TOKENS 65536
#define MANY_BITS (1 << 20)
#define MOST_BITS (1 << 23)
#define NONE (-1)

typedef struct {
    uint32_t at;     /* in the text */
    uint32_t number; /* of the n-gram that starts there */
} Position;

typedef struct {
    int32_t number;
    int is_output, is_reference;
    Span text;
    Position *positions; /* those where a longer n-gram can match */
    int64_t left;
} Member;

typedef struct {
    uint64_t key;
    uint32_t member; /* where it was found last */
    uint32_t latest; /* the number of its latest occurrence there */
} Gram;

typedef int64_t CountShared(const uint64_t *, const uint64_t *, int64_t);

typedef struct {
    const Texts *texts;
    const Groups *groups;
    CountShared *count_shared;
    int max_order;
    int64_t *matches;
    int64_t *next; /* by group: the next one with which it shares texts */
    /* the texts at hand */
    Member *members;
    int32_t *places; /* by text: which member it is, or NONE */
    int64_t count, tokens, reference_tokens, members_room;
    Position *positions;
    uint64_t *rows, *joined; /* of bits: one per member, and one for several of them */
    int64_t width, positions_room, rows_room, joined_room;
    /* their references' n-grams of one order, by number; number 0 is every other n-gram */
    Gram *grams;
    uint32_t *again;  /* the number of the next occurrence in one text, or 0 */
    uint32_t numbers; /* in use */
    uint32_t *slots;
    uint64_t mask;
    int shift;
    int64_t grams_room, again_room, slots_room;
} Counting;

/* ---- Numbers of n-grams ---- */

static inline uint32_t new_number(Counting *c, uint64_t key) {
    uint32_t number = c->numbers++;
    c->grams[number] = (Gram){key, UINT32_MAX, 0};
    c->again[number] = 0;
    return number;
}

/* Fills a member's row. Only references bring new numbers. */
static inline void fill_row(Counting *c, uint32_t m, int order, const int is_reference) {
    Member *member = &c->members[m];
    Position *positions = member->positions;
    const int32_t *last_tokens = member->text.at + order - 1;
    uint32_t *slots = c->slots, *again = c->again;
    Gram *grams = c->grams;
    uint64_t *row = c->rows + m * c->width;
    uint64_t mask = c->mask;
    int shift = c->shift;
    int64_t count = member->left, left = 0;
    while (count && positions[count - 1].at + order > member->text.length) count--;
    for (int64_t p = 0; p < count; p++) {
        uint32_t first = positions[p].at;
        uint64_t key = (uint64_t)positions[p].number << 32 | (uint32_t)last_tokens[first];
        uint64_t at = ((key ^ key >> 29) * 0x9E3779B97F4A7C15u) >> shift;
        uint32_t number = slots[at];
        /* One branch, seldom taken: whether the key is there cannot be foreseen. */
        while ((number != 0) & (grams[number].key != key)) number = slots[at = (at + 1) & mask];
        if (is_reference && !number) number = slots[at] = new_number(c, key);
        Gram *gram = &grams[number];
        uint32_t after = again[gram->latest], occurrence = gram->member == m ? after : number;
        if (is_reference && !occurrence) occurrence = again[gram->latest] = new_number(c, 0);
        gram->member = m;
        gram->latest = occurrence;
        row[occurrence >> 6] |= (uint64_t)1 << (occurrence & 63);
        positions[left] = (Position){first, number};
        left += number != 0;
    }
    member->left = left;
}

/* Each has the registers to itself. */
static __attribute__((noinline)) void fill_reference(Counting *c, uint32_t m, int order) { fill_row(c, m, order, 1); }
static __attribute__((noinline)) void fill_output(Counting *c, uint32_t m, int order) { fill_row(c, m, order, 0); }

/* A quarter's load, half for long texts. */
static uint64_t table_size(int64_t grams) { return power_above((uint64_t)(grams + 1) * (grams < 4096 ? 4 : 2)); }

static void empty_table(Counting *c, int64_t grams) {
    uint64_t size = table_size(grams);
    c->mask = size - 1;
    c->shift = 64 - __builtin_ctzll(size);
    memset(c->slots, 0, (size_t)size * sizeof(uint32_t));
    c->numbers = 0;
    new_number(c, 0);
}

/* Drops the positions of references whose n-gram no output has. Returns how many are left. */
static int64_t drop_positions(Counting *c) {
    int64_t width = c->numbers / 64 + 1, all = 0;
    memset(c->joined, 0, (size_t)width * sizeof(uint64_t));
    for (int64_t m = 0; m < c->count; m++) {
        if (!c->members[m].is_output) continue;
        for (int64_t i = 0; i < width; i++) c->joined[i] |= c->rows[m * c->width + i];
    }
    for (Member *member = c->members; member < c->members + c->count; member++) {
        int64_t left = 0;
        if (!member->is_reference) continue;
        for (int64_t p = 0; p < member->left; p++) {
            Position position = member->positions[p];
            member->positions[left] = position;
            left += c->joined[position.number >> 6] >> (position.number & 63) & 1;
        }
        all += member->left = left;
    }
    return all;
}

static void fill_rows(Counting *c, int order) {
    memset(c->rows, 0, (size_t)(c->count * c->width) * sizeof(uint64_t));
    for (uint32_t m = 0; m < c->count; m++) {
        if (c->members[m].is_reference) fill_reference(c, m, order);
    }
    for (uint32_t m = 0; m < c->count; m++) {
        if (!c->members[m].is_reference) fill_output(c, m, order);
    }
}

static inline __attribute__((always_inline)) int64_t add_bits(const uint64_t *a, const uint64_t *b, int64_t width) {
    int64_t count = 0;
    for (int64_t i = 0; i < width; i++) count += __builtin_popcountll(a[i] & b[i]);
    return count;
}

/* The bits that two rows share. The instruction that counts bits, which the compiler may not assume on x86, halves the
 * time of all pairs of 64 texts. */
static int64_t count_shared(const uint64_t *a, const uint64_t *b, int64_t width) { return add_bits(a, b, width); }

#if defined(__x86_64__)
static __attribute__((target("popcnt"))) int64_t count_shared_at_once(const uint64_t *a, const uint64_t *b, int64_t width) {
    return add_bits(a, b, width);
}

static CountShared *choose_count(void) { return __builtin_cpu_supports("popcnt") ? count_shared_at_once : count_shared; }
#else
static CountShared *choose_count(void) { return count_shared; }
#endif

static const uint64_t *row_of(const Counting *c, int32_t text) { return c->rows + c->places[text] * c->width; }

static int64_t count_group(Counting *c, int64_t group) {
    int64_t start = c->groups->starts[group], end = c->groups->starts[group + 1];
    int64_t width = c->numbers / 64 + 1;
    const uint64_t *output = row_of(c, c->groups->outputs[start]);
    const uint64_t *references = row_of(c, c->groups->references[start]);
    if (end - start > 1) {
        memcpy(c->joined, references, (size_t)width * sizeof(uint64_t));
        for (int64_t pair = start + 1; pair < end; pair++) {
            const uint64_t *more = row_of(c, c->groups->references[pair]);
            for (int64_t i = 0; i < width; i++) c->joined[i] |= more[i];
        }
        references = c->joined;
    }
    return c->count_shared(output, references, width);
}

/* ---- Groups that are counted together ---- */

static int32_t root_of(int32_t *parents, int32_t text) {
    while (parents[text] != text) text = parents[text] = parents[parents[text]];
    return text;
}

/* Chains the groups that share texts, in their order; firsts[] has the beginning of each chain, by text, or NONE. */
static int chain_groups(Counting *c, int64_t *firsts) {
    const Groups *groups = c->groups;
    int32_t *parents = room(c->texts->texts, sizeof(int32_t));
    int64_t *lasts = room(c->texts->texts, sizeof(int64_t));
    int failed = parents == NULL || lasts == NULL ? -1 : 0;
    for (int64_t text = 0; text < c->texts->texts && !failed; text++) {
        parents[text] = (int32_t)text;
        firsts[text] = NONE;
    }
    for (int64_t pair = groups->starts[0]; pair < groups->starts[groups->groups] && !failed; pair++) {
        int32_t output = groups->outputs[pair], reference = groups->references[pair];
        if (text_of(c->texts, output).length && text_of(c->texts, reference).length) {
            parents[root_of(parents, output)] = root_of(parents, reference);
        }
    }
    for (int64_t group = 0; group < groups->groups && !failed; group++) {
        int64_t start = groups->starts[group];
        if (start == groups->starts[group + 1] || !text_of(c->texts, groups->outputs[start]).length) continue;
        int32_t root = root_of(parents, groups->outputs[start]);
        if (firsts[root] == NONE) firsts[root] = group;
        else c->next[lasts[root]] = group;
        lasts[root] = group;
        c->next[group] = NONE;
    }
    free(parents), free(lasts);
    return failed;
}

static int add_member(Counting *c, int32_t text, int is_reference) {
    if (c->places[text] == NONE) {
        if (make_room((void **)&c->members, &c->members_room, c->count + 1, sizeof(Member)) < 0) return -1;
        Span span = text_of(c->texts, text);
        c->members[c->count] = (Member){.number = text, .text = span, .left = span.length};
        c->places[text] = (int32_t)c->count++;
        c->tokens += span.length;
    }
    Member *member = &c->members[c->places[text]];
    if (is_reference && !member->is_reference) c->reference_tokens += member->text.length;
    if (is_reference) member->is_reference = 1;
    else member->is_output = 1;
    return 0;
}

/* The tokens of a group's references that are not yet among the references. */
static int64_t count_new_tokens(const Counting *c, int64_t group) {
    int64_t tokens = 0;
    for (int64_t pair = c->groups->starts[group]; pair < c->groups->starts[group + 1]; pair++) {
        int32_t text = c->groups->references[pair], place = c->places[text];
        if (place == NONE || !c->members[place].is_reference) tokens += text_of(c->texts, text).length;
    }
    return tokens;
}

/* Takes groups from the chain until they are many; sets the first that is left, or NONE. */
static int gather(Counting *c, int64_t *group) {
    c->count = c->tokens = c->reference_tokens = 0;
    while (*group != NONE && c->tokens < MANY_TOKENS) {
        int64_t start = c->groups->starts[*group], added = count_new_tokens(c, *group);
        int64_t bits = c->count * (c->reference_tokens + added);
        if (bits > MOST_BITS || (bits > MANY_BITS && added)) break;
        if (add_member(c, c->groups->outputs[start], 0) < 0) return -1;
        for (int64_t pair = start; pair < c->groups->starts[*group + 1]; pair++) {
            if (add_member(c, c->groups->references[pair], 1) < 0) return -1;
        }
        *group = c->next[*group];
    }
    return 0;
}

static int prepare(Counting *c) {
    int64_t numbers = c->reference_tokens + 1;
    c->width = numbers / 64 + 1;
    int64_t slots = (int64_t)table_size(c->reference_tokens);
    if (make_room((void **)&c->slots, &c->slots_room, slots, sizeof(uint32_t)) < 0) return -1;
    if (make_room((void **)&c->grams, &c->grams_room, numbers, sizeof(Gram)) < 0) return -1;
    if (make_room((void **)&c->again, &c->again_room, numbers, sizeof(uint32_t)) < 0) return -1;
    if (make_room((void **)&c->rows, &c->rows_room, c->count * c->width, sizeof(uint64_t)) < 0) return -1;
    if (make_room((void **)&c->joined, &c->joined_room, c->width, sizeof(uint64_t)) < 0) return -1;
    if (make_room((void **)&c->positions, &c->positions_room, c->tokens, sizeof(Position)) < 0) return -1;
    Position *positions = c->positions;
    for (Member *member = c->members; member < c->members + c->count; member++) {
        member->positions = positions;
        positions += member->text.length;
        for (int64_t i = 0; i < member->text.length; i++) member->positions[i] = (Position){(uint32_t)i, 0};
    }
    return 0;
}

static int count_chain(Counting *c, int64_t group) {
    while (group != NONE) {
        int64_t first = group;
        if (gather(c, &group) < 0 || prepare(c) < 0) return -1;
        int64_t left = c->reference_tokens;
        for (int order = 1; order <= c->max_order && left; order++) {
            empty_table(c, left);
            fill_rows(c, order);
            for (int64_t g = first; g != group; g = c->next[g]) {
                c->matches[g * c->max_order + order - 1] = count_group(c, g);
            }
            left = drop_positions(c);
        }
        for (int64_t m = 0; m < c->count; m++) c->places[c->members[m].number] = NONE;
    }
    return 0;
}

/* `matches` must be zero at first. A group without references keeps its zeros. */
int count_matches(const Texts *texts, const Groups *groups, int max_order, int64_t *matches) {
    Counting c = {.texts = texts, .groups = groups, .max_order = max_order, .matches = matches};
    c.count_shared = choose_count();
    int64_t *firsts = room(texts->texts, sizeof(int64_t));
    c.next = room(groups->groups, sizeof(int64_t));
    c.places = room(texts->texts, sizeof(int32_t));
    int failed = firsts == NULL || c.next == NULL || c.places == NULL ? -1 : chain_groups(&c, firsts);
    for (int64_t text = 0; text < texts->texts && !failed; text++) c.places[text] = NONE;
    for (int64_t text = 0; text < texts->texts && !failed; text++) {
        if (firsts[text] != NONE) failed = count_chain(&c, firsts[text]);
    }
    free(firsts), free(c.next), free(c.places), free(c.members), free(c.positions), free(c.rows), free(c.joined);
    free(c.grams), free(c.again), free(c.slots);
    return failed;
}
