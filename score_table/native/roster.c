#include "roster.h"

#include <string.h>

/* Objects known at most; beyond it all are forgotten and looked up anew. */
#define ROSTER_LIMIT 8192

static void drop_list(known_list *list) {
    Py_XDECREF(list->copy);
    PyMem_Free(list->items);
    PyMem_Free(list->seats);
    PyMem_Free(list->slots);
    PyMem_Free(list->position);
}

void roster_drop(dropped *what) {
    for (int index = 0; index < LISTS_KEPT; index++) {
        if (what->lists[index].length != 0) {
            drop_list(&what->lists[index]);
        }
    }
    for (size_t index = 0; index < what->capacity; index++) {
        if (what->entries[index].object != NULL) {
            Py_DECREF(what->entries[index].object);
            Py_DECREF((PyObject *)what->entries[index].seat);
        }
    }
    PyMem_Free(what->entries);
}

/* -- the roster ----------------------------------------------------------------------------------------------- */

static uint64_t mixed(const void *pointer) {
    uint64_t value = (uint64_t)(uintptr_t)pointer * 0x9E3779B97F4A7C15u;
    return value ^ value >> 32;
}

static entry *place_of(entry *entries, size_t capacity, const PyObject *object) {
    size_t index = mixed(object) & (capacity - 1);
    while (entries[index].object != NULL && entries[index].object != object) {
        index = (index + 1) & (capacity - 1);
    }
    return entries + index;
}

void roster_forget(roster *all, dropped *what) {
    memcpy(what->lists, all->lists, sizeof what->lists);
    memset(all->lists, 0, sizeof all->lists);
    all->changes += 1;
    what->entries = all->entries;
    what->capacity = all->capacity;
    all->entries = NULL;
    all->capacity = all->used = 0;
}

Seat *roster_seat(const roster *all, const PyObject *object) {
    return all->capacity == 0 ? NULL : place_of(all->entries, all->capacity, object)->seat;
}

int roster_enrol(roster *all, PyObject *object, Seat *seat, dropped *what) {
    if (all->used >= ROSTER_LIMIT) {
        roster_forget(all, what);
    }
    if (2 * (all->used + 1) > all->capacity) {
        size_t capacity = all->capacity == 0 ? 64 : 2 * all->capacity;
        entry *entries = PyMem_Calloc(capacity, sizeof *entries);
        if (entries == NULL) {
            return -1;
        }
        for (size_t index = 0; index < all->capacity; index++) {
            if (all->entries[index].object != NULL) {
                *place_of(entries, capacity, all->entries[index].object) = all->entries[index];
            }
        }
        PyMem_Free(all->entries);
        all->entries = entries;
        all->capacity = capacity;
    }
    entry *place = place_of(all->entries, all->capacity, object);
    if (place->object == NULL) {
        Py_INCREF(object);
        Py_INCREF((PyObject *)seat);
        *place = (entry){object, seat};
        all->used += 1;
    }
    return 0;
}

/* -- lists ---------------------------------------------------------------------------------------------------- */

static int by_value(const void *left, const void *right) {
    int32_t a = *(const int32_t *)left, b = *(const int32_t *)right;
    return (a > b) - (a < b);
}

int roster_refresh(const Ledger *ledger, known_list *list) {
    uint32_t width = ledger->rows->rows.slots;
    if (list->width != width) {
        int32_t *position = PyMem_Malloc(width * sizeof *position);
        if (position == NULL) {
            return -1;
        }
        PyMem_Free(list->position);
        list->position = position;
        list->width = width;
    }
    memset(list->position, -1, width * sizeof *list->position);
    list->version = ledger->version;
    list->usable = 0;
    list->count = 0;
    for (Py_ssize_t index = 0; index < list->length; index++) {
        int32_t slot = ledger_slot_of(ledger, list->seats[index]);
        if (slot < 0) {
            return 0;
        }
        if (list->position[slot] < 0) {
            list->position[slot] = (int32_t)index;
            list->slots[list->count++] = slot;
        }
    }
    qsort(list->slots, list->count, sizeof *list->slots, by_value);
    list->every = list->count == ledger->holders;
    list->usable = 1;
    return 0;
}

int roster_find(const roster *all, PyObject *sequence, int is_list, Py_ssize_t length) {
    for (int which = 0; which < LISTS_KEPT; which++) {
        const known_list *list = all->lists + which;
        Py_ssize_t index = 0;
        while (index < length && list->length == length && item_of(sequence, is_list, index) == list->items[index]) {
            index++;
        }
        if (index == length) {
            return which;
        }
    }
    return -1;
}

int roster_seen(roster *all, uint64_t fingerprint) {
    for (int index = 0; index < FINGERPRINTS; index++) {
        if (all->fingerprints[index] == fingerprint) {
            return 1;
        }
    }
    all->fingerprints[all->next_fingerprint++ % FINGERPRINTS] = fingerprint;
    return 0;
}

void roster_keep(roster *all, PyObject *copy, dropped *what) {
    known_list list = {.length = PyList_Size(copy)};
    size_t length = (size_t)list.length;
    if (list.length == 0 || roster_find(all, copy, 1, list.length) >= 0) {
        return;
    }
    list.items = PyMem_Malloc(length * sizeof *list.items);
    list.seats = PyMem_Malloc(length * sizeof *list.seats);
    list.slots = PyMem_Malloc(length * sizeof *list.slots);
    int complete = list.items != NULL && list.seats != NULL && list.slots != NULL;
    for (size_t index = 0; index < length && complete; index++) {
        list.items[index] = PyList_GetItem(copy, (Py_ssize_t)index);
        list.seats[index] = roster_seat(all, list.items[index]);
        complete = list.seats[index] != NULL;
    }
    if (!complete) {
        PyMem_Free(list.items);
        PyMem_Free(list.seats);
        PyMem_Free(list.slots);
        return;
    }
    Py_INCREF(copy); /* holds the objects */
    list.copy = copy;
    known_list *place = all->lists + all->next_list++ % LISTS_KEPT;
    what->lists[0] = *place;
    *place = list;
    all->changes += 1;
}
