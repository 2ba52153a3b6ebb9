#include "pick.h"

#include <stdlib.h>

/* One more version of the hot loops for wide vectors, chosen when the library is loaded. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif

static uint32_t header_word(const pick_table *table, size_t offset) {
    return *(const volatile uint32_t *)(table->start + offset);
}

static const int32_t *row(const pick_table *table, uint32_t index) {
    return (const int32_t *)(table->start + table->matrix_offset + (size_t)index * table->matrix_stride);
}

uint32_t pick_n(const pick_table *table) {
    uint32_t n = header_word(table, table->n_offset);
    return n < table->slots ? n : table->slots;
}

static uint32_t lanes_in_use(const pick_table *table) {
    uint32_t lanes = header_word(table, table->lanes_offset);
    return lanes < table->lanes ? lanes : table->lanes;
}

static int32_t head_cell(const pick_table *table, int32_t cell, int fade) {
    return fade <= 0 || cell >= table->mark_floor ? cell : cell >> fade;
}

/* Cells out of their ranges are somebody's nonsense: their sums wrap, as numpy's do, and are never undefined. */
static inline int32_t plus(int32_t left, int32_t right) {
    return (int32_t)((uint32_t)left + (uint32_t)right);
}

/* What ties with an unmarked `least`; never a marked slot. */
static int32_t tie_limit(const pick_table *table, int32_t least) {
    int32_t limit = least + table->tie_window;
    return limit < table->mark_floor ? limit : table->mark_floor - 1;
}

#define INLINE static inline __attribute__((always_inline))

typedef int32_t eight __attribute__((vector_size(32), aligned(4), may_alias));

/* The sums of `width` slots (a constant, a multiple of 8, at most 64), kept in registers over all rows. */
INLINE void sum_block(const int32_t *head, const int32_t *cells, size_t stride, uint32_t lanes, int width,
                      int32_t *live, eight *least) {
    eight sums[8];
#pragma GCC unroll 8
    for (int part = 0; part < width / 8; part++) {
        sums[part] = *(const eight *)(head + 8 * part);
    }
    for (uint32_t lane = 0; lane < lanes; lane++, cells += stride) {
#pragma GCC unroll 8
        for (int part = 0; part < width / 8; part++) {
            sums[part] += *(const eight *)(cells + 8 * part);
        }
    }
#pragma GCC unroll 8
    for (int part = 0; part < width / 8; part++) {
        *(eight *)(live + 8 * part) = sums[part];
        eight less = sums[part] < *least;
        *least = (sums[part] & less) | (*least & ~less);
    }
}

/* The first index in [from, to) whose value is at most `limit`; `to` if there is none. */
INLINE uint32_t first_within(const int32_t *live, uint32_t from, uint32_t to, int32_t limit) {
    for (; from + 32 <= to; from += 32) {
        int32_t any = 0;
        for (int index = 0; index < 32; index++) {
            any |= live[from + index] <= limit;
        }
        if (any) {
            break;
        }
    }
    while (from < to && live[from] > limit) {
        from++;
    }
    return from;
}

/* Fills live[0..n) and returns the least of it. `*tied` becomes the first slot from `start` on, cyclically, within
 * the tie window of an unmarked least. One function for all of it: each call of one that has several versions
 * is an indirect jump. */
WIDE static int32_t sum_all(const pick_table *table, const int32_t *head, uint32_t lanes, uint32_t n, uint32_t start,
                            int fade, const int32_t *extra, int32_t *restrict live, uint32_t *tied) {
    const size_t stride = table->matrix_stride / sizeof(int32_t);
    const int32_t *cells = (const int32_t *)(table->start + table->matrix_offset) + 2 * stride;
    int32_t least = INT32_MAX;
    uint32_t slot = 0;
    if (fade <= 0 && extra == NULL) {
        eight leasts = {INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX};
        for (; slot + 64 <= n; slot += 64) {
            sum_block(head + slot, cells + slot, stride, lanes, 64, live + slot, &leasts);
        }
        for (; slot + 16 <= n; slot += 16) {
            sum_block(head + slot, cells + slot, stride, lanes, 16, live + slot, &leasts);
        }
        for (int part = 0; part < 8; part++) {
            least = leasts[part] < least ? leasts[part] : least;
        }
    }
    for (; slot < n; slot++) {
        int32_t sum = head_cell(table, head[slot], fade);
        for (uint32_t lane = 0; lane < lanes; lane++) {
            sum = plus(sum, cells[lane * stride + slot]);
        }
        live[slot] = extra == NULL ? sum : plus(sum, extra[slot]);
        least = live[slot] < least ? live[slot] : least;
    }
    if (least < table->mark_floor) {
        int32_t limit = tie_limit(table, least);
        *tied = first_within(live, start, n, limit);
        if (*tied == n) {
            *tied = first_within(live, 0, start, limit);
        }
    }
    return least;
}

static int32_t least_of(const int32_t *live, uint32_t n) {
    int32_t least = INT32_MAX;
    for (uint32_t slot = 0; slot < n; slot++) {
        least = live[slot] < least ? live[slot] : least;
    }
    return least;
}

void pick_live(const pick_table *table, const int32_t *slots, uint32_t count, int fade, const int32_t *extra,
               int32_t *restrict live) {
    const int32_t *head = row(table, fade < 0 ? 0 : 1);
    uint32_t lanes = lanes_in_use(table);
    for (uint32_t index = 0; index < count; index++) {
        int32_t value = head_cell(table, head[slots[index]], fade);
        live[index] = extra == NULL ? value : plus(value, extra[slots[index]]);
    }
    for (uint32_t lane = 0; lane < lanes; lane++) {
        const int32_t *cells = row(table, 2 + lane);
        for (uint32_t index = 0; index < count; index++) {
            live[index] = plus(live[index], cells[slots[index]]);
        }
    }
}

/* As pick_live. Where they are many of all slots in use, to sum all of them is faster than to gather theirs. */
static void live_of(const pick_table *table, const int32_t *slots, uint32_t count, int fade, const int32_t *extra,
                    int32_t *live) {
    int32_t all[PICK_STACK_SLOTS];
    uint32_t n = pick_n(table), highest = 0, tied;
    for (uint32_t index = 0; index < count; index++) {
        highest = (uint32_t)slots[index] > highest ? (uint32_t)slots[index] : highest;
    }
    if (n > PICK_STACK_SLOTS || highest >= n || count < n / 8) {
        pick_live(table, slots, count, fade, extra, live);
        return;
    }
    sum_all(table, row(table, fade < 0 ? 0 : 1), lanes_in_use(table), n, 0, fade, extra, all, &tied);
    for (uint32_t index = 0; index < count; index++) {
        live[index] = all[slots[index]];
    }
}

static int32_t slot_at(const int32_t *candidates, uint32_t index) {
    return candidates == NULL ? (int32_t)index : candidates[index];
}

static int32_t band_of(const pick_table *table, int32_t cell) {
    return cell < table->mark_floor ? 0 : (cell - table->mark_floor) / table->mark_band + 1;
}

/* The index of the first candidate at or after the cursor, 0 if all lie before it. */
static uint32_t first_at(const int32_t *candidates, uint32_t count, int64_t cursor) {
    uint32_t low = 0, high = count;
    if (candidates == NULL) {
        return cursor <= 0 || cursor >= count ? 0 : (uint32_t)cursor;
    }
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (candidates[middle] < cursor) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low == count ? 0 : low;
}

/* The first slot at or after the cursor whose live value is at most `limit` and whose mark is `band` (< 0: any),
 * else the first such slot at all; -1 if there is none. */
static int32_t take(const int32_t *candidates, uint32_t count, int64_t cursor, const int32_t *live, int32_t limit,
                    const int32_t *head, const pick_table *table, int32_t band) {
    uint32_t start = first_at(candidates, count, cursor);
    for (uint32_t step = 0, index = start; step < count; step++, index++) {
        if (index == count) {
            index = 0;
        }
        if (live[index] <= limit && (band < 0 || band_of(table, head[slot_at(candidates, index)]) == band)) {
            return slot_at(candidates, index);
        }
    }
    return -1;
}

static int32_t choose_marked(const pick_table *table, const int32_t *candidates, uint32_t count, int64_t cursor,
                             int fade, const int32_t *live) {
    /* The head cells are read again; a mark that changed in between is as good as the one before. */
    const int32_t *head = row(table, fade < 0 ? 0 : 1);
    int32_t mildest = INT32_MAX, least = INT32_MAX;
    for (uint32_t index = 0; index < count; index++) {
        int32_t band = band_of(table, head[slot_at(candidates, index)]);
        if (band < mildest || (band == mildest && live[index] < least)) {
            least = live[index];
            mildest = band;
        }
    }
    if (mildest >= table->unused_band) {
        return PICK_NO_SLOT;
    }
    int32_t slot = take(candidates, count, cursor, live, plus(least, table->tie_window), head, table, mildest);
    return slot < 0 ? PICK_NO_SLOT : ~slot;
}

int32_t pick_choose(const pick_table *table, const int32_t *candidates, uint32_t count, int64_t cursor, int fade,
                    const int32_t *extra) {
    int32_t on_stack[PICK_STACK_SLOTS];
    int32_t *live = on_stack, least, answer;
    uint32_t tied = 0;
    if (candidates == NULL) {
        count = pick_n(table);
    }
    if (count == 0) {
        return PICK_NO_SLOT;
    }
    if (count > PICK_STACK_SLOTS) {
        live = malloc(count * sizeof *live);
        if (live == NULL) {
            return PICK_NO_MEMORY;
        }
    }
    if (candidates == NULL) {
        least = sum_all(table, row(table, fade < 0 ? 0 : 1), lanes_in_use(table), count,
                        first_at(NULL, count, cursor), fade, extra, live, &tied);
    } else {
        live_of(table, candidates, count, fade, extra, live);
        least = least_of(live, count);
    }
    if (least >= table->mark_floor) {
        answer = choose_marked(table, candidates, count, cursor, fade, live);
    } else if (candidates == NULL) {
        answer = (int32_t)tied;
    } else {
        answer = take(candidates, count, cursor, live, tie_limit(table, least), NULL, table, -1);
    }
    if (live != on_stack) {
        free(live);
    }
    return answer;
}

int32_t pick_among(const pick_table *table, const int32_t *slots, uint32_t count, int64_t cursor, const int32_t *extra) {
    int32_t live[PICK_STACK_SLOTS];
    if (count == 0 || count > PICK_STACK_SLOTS) {
        return -1;
    }
    live_of(table, slots, count, -1, extra, live);
    int32_t least = least_of(live, count);
    if (least >= table->mark_floor) {
        return -1;
    }
    int32_t limit = tie_limit(table, least), best = -1;
    int64_t best_distance = INT64_MAX;
    for (uint32_t index = 0; index < count; index++) {
        /* Behind the cursor is farther than anything at or after it. */
        int64_t distance = slots[index] - cursor;
        distance = distance < 0 ? distance + ((int64_t)1 << 32) : distance;
        if (live[index] <= limit && distance < best_distance) {
            best = (int32_t)index;
            best_distance = distance;
        }
    }
    return best;
}
