/* N-grams that an output shares with its references.
 *
 * One order at a time: an n-gram is its first n - 1 tokens, known by the slot they have in the table of that order, and
 * its last token. So a key is exact and has one size, and a table holds only one order, small enough for the nearest
 * cache. Outputs with the same references share their tables. An output's position that found no match is dropped: no
 * longer n-gram from there can match. */
#include <string.h>
#include "kernels.h"

#define MANY_TOKENS 65536 /* outputs of about so many tokens go through the tables together */
#define NONE (-1)

typedef struct {
    uint64_t key;
    uint32_t epoch;  /* the slot is empty unless this is the table's */
    int32_t allowed; /* how often the n-gram may still be matched */
} Slot;

typedef struct {
    uint32_t reference;
    int32_t count;
} Tally; /* how often the n-gram was seen in the reference at hand, where there are several */

typedef struct {
    uint32_t at;   /* in the output */
    uint32_t slot; /* of the n-gram that starts there */
} Position;

typedef struct {
    int64_t group;
    Span text;
    Position *positions; /* those where the order before matched */
    int64_t left;
} Member;

typedef struct {
    const Texts *texts;
    const Groups *groups;
    int max_order;
    int64_t *matches;
    /* the table */
    Slot *slots;
    Tally *tallies; /* NULL while no output has several references */
    uint64_t mask;
    int shift;
    uint32_t epoch;
    int64_t slots_room, tallies_room;
    uint32_t *prefixes; /* the slots of the references' n-grams of the order before */
    int64_t prefixes_room;
    /* the outputs at hand */
    Member *members;
    Position *positions;
    uint32_t *taken; /* slots whose `allowed` an output has lowered */
    int64_t members_room, positions_room, taken_room;
    /* groups with the same references, chained */
    int64_t *next;
} Counting;

/* ---- The table ---- */

static inline uint64_t key_of(uint32_t prefix, int32_t token) { return (uint64_t)prefix << 32 | (uint32_t)token; }

static inline uint64_t place(const Counting *c, uint64_t key) {
    return ((key ^ key >> 29) * 0x9E3779B97F4A7C15u) >> c->shift;
}

static inline uint32_t insert(Counting *c, uint64_t key) {
    uint64_t at = place(c, key);
    while (c->slots[at].epoch == c->epoch && c->slots[at].key != key) at = (at + 1) & c->mask;
    if (c->slots[at].epoch != c->epoch) {
        c->slots[at] = (Slot){key, c->epoch, 0};
        if (c->tallies != NULL) c->tallies[at] = (Tally){UINT32_MAX, 0};
    }
    return (uint32_t)at;
}

static inline int64_t find(const Counting *c, uint64_t key) {
    uint64_t at = place(c, key);
    while (c->slots[at].epoch == c->epoch) {
        if (c->slots[at].key == key) return (int64_t)at;
        at = (at + 1) & c->mask;
    }
    return NONE;
}

static void empty_table(Counting *c) {
    if (++c->epoch == 0) {
        memset(c->slots, 0, (size_t)c->slots_room * sizeof(Slot));
        c->epoch = 1;
    }
}

/* Room for n-grams of `tokens` tokens at a quarter's load, half for long texts. A small table in a large allocation stays small. */
static int size_table(Counting *c, int64_t tokens) {
    int64_t size = (int64_t)power_above((uint64_t)tokens * (tokens < 512 ? 4 : 2) + 2);
    if (size > (int64_t)1 << 32) return -1;
    if (size > c->slots_room) {
        free(c->slots);
        c->slots = zeroed_room(size, sizeof(Slot));
        c->slots_room = c->slots == NULL ? 0 : size;
        c->epoch = 0;
    }
    if (c->slots == NULL) return -1;
    if (c->tallies != NULL && make_room((void **)&c->tallies, &c->tallies_room, size, sizeof(Tally)) < 0) return -1;
    c->mask = (uint64_t)size - 1;
    c->shift = 64 - __builtin_ctzll((uint64_t)size);
    return make_room((void **)&c->prefixes, &c->prefixes_room, tokens, sizeof(uint32_t));
}

/* ---- References into the table, outputs against it ---- */

/* Counts an n-gram of the k-th reference. Allowed is the greatest count in any of them. */
static inline void allow(Counting *c, uint32_t slot, uint32_t k) {
    if (c->tallies == NULL) {
        c->slots[slot].allowed++;
        return;
    }
    Tally *tally = &c->tallies[slot];
    if (tally->reference != k) *tally = (Tally){k, 0};
    if (++tally->count > c->slots[slot].allowed) c->slots[slot].allowed = tally->count;
}

static void enter_references(Counting *c, const int32_t *references, int64_t count, int order) {
    uint32_t *prefix = c->prefixes;
    empty_table(c);
    for (int64_t k = 0; k < count; k++) {
        Span text = text_of(c->texts, references[k]);
        for (int64_t i = 0; i + order <= text.length; i++) {
            prefix[i] = insert(c, key_of(order > 1 ? prefix[i] : 0, text.at[i + order - 1]));
            allow(c, prefix[i], (uint32_t)k);
        }
        prefix += text.length;
    }
}

static int64_t match_output(Counting *c, Member *member, int order) {
    int64_t matched = 0, left = 0;
    for (int64_t p = 0; p < member->left; p++) {
        Position position = member->positions[p];
        if (position.at + order > member->text.length) break;
        int64_t slot = find(c, key_of(position.slot, member->text.at[position.at + order - 1]));
        if (slot == NONE) continue;
        member->positions[left++] = (Position){position.at, (uint32_t)slot};
        if (c->slots[slot].allowed > 0) {
            c->slots[slot].allowed--;
            c->taken[matched++] = (uint32_t)slot;
        }
    }
    for (int64_t t = 0; t < matched; t++) c->slots[c->taken[t]].allowed++;
    member->left = left;
    return matched;
}

/* ---- Groups with the same references ---- */

static Span references_of(const Groups *groups, int64_t group) {
    int64_t start = groups->starts[group];
    return (Span){groups->references + start, groups->starts[group + 1] - start};
}

static int same(Span a, Span b) {
    return a.length == b.length && memcmp(a.at, b.at, (size_t)a.length * sizeof(int32_t)) == 0;
}

static uint64_t hash_of(Span span) {
    uint64_t hash = (uint64_t)span.length;
    for (int64_t i = 0; i < span.length; i++) hash = (hash ^ (uint32_t)span.at[i]) * 0x9E3779B97F4A7C15u;
    return hash;
}

/* Chains the groups by `next`, in their order; firsts[] begins each chain. Returns how many, or -1. */
static int64_t chain_groups(Counting *c, int64_t *firsts) {
    int64_t count = 0, size = (int64_t)power_above((uint64_t)c->groups->groups * 2 + 2);
    int shift = 64 - __builtin_ctzll((uint64_t)size);
    int64_t *last = room(size, sizeof(int64_t));
    if (last == NULL) return -1;
    for (int64_t i = 0; i < size; i++) last[i] = NONE;
    for (int64_t group = 0; group < c->groups->groups; group++) {
        Span references = references_of(c->groups, group);
        uint64_t at = hash_of(references) >> shift;
        c->next[group] = NONE;
        while (last[at] != NONE && !same(references_of(c->groups, last[at]), references)) at = (at + 1) & (size - 1);
        if (last[at] == NONE) firsts[count++] = group;
        else c->next[last[at]] = group;
        last[at] = group;
    }
    free(last);
    return count;
}

/* ---- The whole ---- */

/* Takes outputs from the chain until they are many tokens; returns the first that is left, or NONE. */
static int64_t gather(Counting *c, int64_t group, int64_t *count) {
    int64_t tokens = 0;
    *count = 0;
    for (; group != NONE && (tokens == 0 || tokens < MANY_TOKENS); group = c->next[group]) {
        Span text = text_of(c->texts, c->groups->outputs[c->groups->starts[group]]);
        if (make_room((void **)&c->members, &c->members_room, *count + 1, sizeof(Member)) < 0) return -2;
        c->members[(*count)++] = (Member){.group = group, .text = text, .left = text.length};
        tokens += text.length;
    }
    if (make_room((void **)&c->positions, &c->positions_room, tokens, sizeof(Position)) < 0) return -2;
    if (make_room((void **)&c->taken, &c->taken_room, tokens, sizeof(uint32_t)) < 0) return -2;
    Position *free_positions = c->positions;
    for (int64_t m = 0; m < *count; m++) {
        c->members[m].positions = free_positions;
        for (int64_t i = 0; i < c->members[m].left; i++) free_positions[i] = (Position){(uint32_t)i, 0};
        free_positions += c->members[m].left;
    }
    return group;
}

static int match_chain(Counting *c, int64_t group) {
    Span references = references_of(c->groups, group);
    int64_t tokens = 0, longest = 0, count;
    for (int64_t k = 0; k < references.length; k++) {
        int64_t length = text_of(c->texts, references.at[k]).length;
        tokens += length;
        if (length > longest) longest = length;
    }
    if (tokens == 0) return 0;
    if (size_table(c, tokens) < 0) return -1;
    while (group != NONE) {
        group = gather(c, group, &count);
        if (group == -2) return -1;
        for (int order = 1; order <= c->max_order && order <= longest; order++) {
            enter_references(c, references.at, references.length, order);
            for (int64_t m = 0; m < count; m++) {
                c->matches[c->members[m].group * c->max_order + order - 1] = match_output(c, &c->members[m], order);
            }
        }
    }
    return 0;
}

static int any_with_several(const Groups *groups) {
    for (int64_t g = 0; g < groups->groups; g++) {
        if (groups->starts[g + 1] - groups->starts[g] > 1) return 1;
    }
    return 0;
}

/* `matches` must be zero at first. A group without references keeps its zeros. */
int count_matches(const Texts *texts, const Groups *groups, int max_order, int64_t *matches) {
    Counting c = {.texts = texts, .groups = groups, .max_order = max_order, .matches = matches};
    int64_t *firsts = room(groups->groups, sizeof(int64_t));
    c.next = room(groups->groups, sizeof(int64_t));
    int failed = firsts == NULL || c.next == NULL ? -1 : 0;
    if (!failed && any_with_several(groups)) {
        failed = make_room((void **)&c.tallies, &c.tallies_room, 1024, sizeof(Tally));
    }
    int64_t chains = failed ? -1 : chain_groups(&c, firsts);
    failed = chains < 0 ? -1 : 0;
    for (int64_t k = 0; k < chains && !failed; k++) failed = match_chain(&c, firsts[k]);
    free(firsts), free(c.next), free(c.slots), free(c.tallies), free(c.prefixes);
    free(c.members), free(c.positions), free(c.taken);
    return failed;
}
