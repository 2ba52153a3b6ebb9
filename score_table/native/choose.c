/* From a list of objects to a counted request: objects to slots, the pick, the count. */
#include "picker.h"

/* Look up every object of the tuple that is not known yet: 0; 1 where that cannot be; -1 with an exception set. */
static int enrol_all(Picker *picker, PyObject *tuple) {
    Py_ssize_t length = PyTuple_Size(tuple);
    for (Py_ssize_t index = 0; index < length; index++) {
        PyObject *object = PyTuple_GetItem(tuple, index);
        LOCK(&picker->lock);
        int known = roster_seat(&picker->roster, object) != NULL;
        UNLOCK(&picker->lock);
        if (known) {
            continue;
        }
        PyObject *seat = PyObject_CallFunctionObjArgs(picker->seat_of, object, NULL);
        if (seat == NULL) {
            if (!PyErr_ExceptionMatches(PyExc_Exception)) {
                return -1;
            }
            PyErr_Clear(); /* the caller meets it again, and says so */
            return 1;
        }
        if (Py_TYPE(seat) != picker->ledger->seat_type) {
            Py_DECREF(seat);
            return 1;
        }
        dropped what = {.capacity = 0};
        LOCK(&picker->lock);
        int failed = roster_enrol(&picker->roster, object, (Seat *)seat, &what);
        UNLOCK(&picker->lock);
        Py_DECREF(seat);
        roster_drop(&what);
        if (failed) {
            return 1;
        }
    }
    return 0;
}

enum { SLOW = -1, UNKNOWN_OBJECTS = -2 };

/* Which cursor serves lists whose slots lie between these: as score_table/ledger/rules.py says. */
static int turn_of(int32_t lowest, int32_t highest) {
    return (int)((((uint32_t)lowest << 16) + (uint32_t)highest) * 0x9E3779B1u >> 26);
}

/* Whether the table, its slot map and the lane are all as they should be, for certain. */
static int is_fresh(const Ledger *ledger, int64_t now) {
    const count_rows *rows = ledger_rows(ledger);
    if (rows == NULL) {
        return 0;
    }
    const unsigned char *start = ledger->core->table.start;
    uint64_t heartbeat = core_word(ledger->core, HEARTBEAT_OFFSET), limit = ledger->max_heartbeat_age;
    uint64_t apart = heartbeat > (uint64_t)now ? heartbeat - (uint64_t)now : (uint64_t)now - heartbeat;
    return __atomic_load_n((const uint32_t *)(start + STATE_OFFSET), __ATOMIC_RELAXED) == STATE_READY &&
           core_word(ledger->core, MEMBERSHIP_OFFSET) == ledger->membership && apart + ledger->clock_error <= limit &&
           count_is_mine(rows);
}

/* The index of the object to take; its seat; or SLOW, or UNKNOWN_OBJECTS. Both locks are held. */
static Py_ssize_t choose(Picker *picker, question *asked, Seat **seat) {
    const Ledger *ledger = picker->ledger;
    PyObject *sequence = asked->sequence;
    const int is_list = asked->is_list;
    const Py_ssize_t length = asked->length;
    if (length == 0 || !is_fresh(ledger, asked->now)) {
        return SLOW;
    }
    const pick_table *table = &ledger->core->table;
    const int32_t *extra = ledger_rows(ledger)->token == 0 ? ledger_rows(ledger)->cells : NULL;
    uint32_t n = pick_n(table);
    known_list *list = NULL;
    if (asked->alike >= 0 && asked->changes == picker->roster.changes) {
        list = picker->roster.lists + asked->alike;
    }
    if (list != NULL && list->length == length) {
        if (list->version != ledger->version && roster_refresh(ledger, list) < 0) {
            return SLOW;
        }
        if (!list->usable) {
            return SLOW;
        }
        int64_t *cursor = picker->cursors + turn_of(list->slots[0], list->slots[list->count - 1]);
        int32_t slot = pick_choose(table, list->every ? NULL : list->slots, list->count, n == 0 ? 0 : *cursor % n, -1, extra);
        if (slot < 0 || (uint32_t)slot >= list->width || list->position[slot] < 0) {
            return SLOW; /* only marked ones, or "all" has just become one more */
        }
        Py_ssize_t index = list->position[slot];
        if (item_of(sequence, is_list, index) == list->items[index]) {
            *seat = list->seats[index];
            *cursor = slot + 1;
            return index;
        }
        /* It is only equal, by what its class calls equal. */
    }
    int32_t slots[PICK_STACK_SLOTS], lowest = INT32_MAX, highest = 0;
    uint64_t fingerprint = (uint64_t)length;
    if (length > PICK_STACK_SLOTS) {
        return SLOW;
    }
    for (Py_ssize_t index = 0; index < length; index++) {
        PyObject *object = item_of(sequence, is_list, index);
        const Seat *its = roster_seat(&picker->roster, object);
        if (its == NULL) {
            return UNKNOWN_OBJECTS;
        }
        slots[index] = ledger_slot_of(ledger, its);
        if (slots[index] < 0) {
            return SLOW;
        }
        lowest = slots[index] < lowest ? slots[index] : lowest;
        highest = slots[index] > highest ? slots[index] : highest;
        fingerprint = (fingerprint ^ (uint64_t)(uintptr_t)object) * 0x9E3779B97F4A7C15u;
    }
    int64_t *cursor = picker->cursors + turn_of(lowest, highest);
    int32_t index = pick_among(table, slots, (uint32_t)length, n == 0 ? 0 : *cursor % n, extra);
    if (index < 0) {
        return SLOW;
    }
    *seat = roster_seat(&picker->roster, item_of(sequence, is_list, index));
    *cursor = slots[index] + 1;
    asked->keep = roster_seen(&picker->roster, fingerprint);
    return index;
}

/* Find the list kept that looks like the one asked about. Comparing two lists is the fastest way to see that their
 * items are the same objects; only where they are not it may run the code of their class, so that nothing may be
 * locked, and what was found holds only while the roster stays as it is. -1 with an exception set. */
static int find_alike(Picker *picker, question *asked) {
    asked->alike = -1;
    asked->changes = picker->roster.changes;
    asked->length = asked->is_list ? PyList_Size(asked->sequence) : PyTuple_Size(asked->sequence);
    if (!asked->is_list) {
        LOCK(&picker->lock);
        asked->changes = picker->roster.changes;
        asked->alike = asked->length == 0 ? -1 : roster_find(&picker->roster, asked->sequence, 0, asked->length);
        UNLOCK(&picker->lock);
        return 0;
    }
    const Py_ssize_t probes[] = {0, asked->length / 2, asked->length - 1};
    for (int which = 0; which < LISTS_KEPT && asked->length != 0; which++) {
        const known_list *list = picker->roster.lists + which;
        int alike = list->length == asked->length;
        for (int probe = 0; probe < 3 && alike; probe++) {
            alike = PyList_GetItem(asked->sequence, probes[probe]) == list->items[probes[probe]];
        }
        if (!alike) {
            continue;
        }
        PyObject *copy = list->copy;
        Py_INCREF(copy);
        int equal = PyObject_RichCompareBool(asked->sequence, copy, Py_EQ);
        Py_DECREF(copy);
        if (equal < 0) {
            if (!PyErr_ExceptionMatches(PyExc_Exception)) {
                return -1;
            }
            PyErr_Clear();
        }
        if (picker->roster.changes != asked->changes || PyList_Size(asked->sequence) != asked->length) {
            break; /* the code of their class has picked, or changed the list */
        }
        if (equal == 1) {
            asked->alike = which;
            break;
        }
    }
    return 0;
}

/* With a new slot map every object is looked up anew: some may have been given another id or address. */
static void ask_anew(Picker *picker) {
    dropped what = {.capacity = 0};
    LOCK(&picker->lock);
    ledger_lock(picker->ledger);
    uint64_t version = picker->ledger->version;
    UNLOCK(&picker->ledger->lock);
    if (picker->version != version) {
        picker->version = version;
        roster_forget(&picker->roster, &what);
    }
    UNLOCK(&picker->lock);
    roster_drop(&what);
}

int picker_ask(Picker *picker, PyObject *instances, question *asked) {
    asked->is_list = PyList_CheckExact(instances);
    if (!asked->is_list && !PyTuple_CheckExact(instances)) {
        return 1;
    }
#ifdef Py_GIL_DISABLED
    if (asked->is_list) {
        instances = PyList_AsTuple(instances);
        if (instances == NULL) {
            return -1;
        }
        asked->is_list = 0;
    } else {
        Py_INCREF(instances);
    }
#else
    Py_INCREF(instances);
#endif
    asked->sequence = instances;
    asked->keep = 0;
    ask_anew(picker);
    asked->now = ledger_now(picker->ledger, 1);
    if (asked->now < 0 || find_alike(picker, asked) < 0) {
        Py_DECREF(instances);
        return -1;
    }
    return 0;
}

/* Keep a copy of a list that came again. */
static void keep(Picker *picker, PyObject *sequence) {
    PyObject *copy = PySequence_List(sequence);
    if (copy == NULL) {
        PyErr_Clear(); /* no memory: then it is looked up object by object again */
        return;
    }
    dropped what = {.capacity = 0};
    LOCK(&picker->lock);
    roster_keep(&picker->roster, copy, &what);
    UNLOCK(&picker->lock);
    roster_drop(&what);
    Py_DECREF(copy);
}

int picker_count(Picker *picker, question *asked, Guard *guard, int32_t tokens, int visible, count_charge *charge,
                 PyObject **instance) {
    Ledger *ledger = picker->ledger;
    for (int attempt = 0; attempt < 2; attempt++) {
        count_charge *oldest = NULL;
        Seat *seat = NULL;
        LOCK(&picker->lock);
        ledger_lock(ledger);
        asked->length = asked->is_list ? PyList_Size(asked->sequence) : PyTuple_Size(asked->sequence);
        Py_ssize_t index = choose(picker, asked, &seat);
        if (index >= 0) {
            PyObject *chosen = item_of(asked->sequence, asked->is_list, index);
            Py_INCREF(chosen);
            *instance = chosen;
            if (guard != NULL) {
                ledger_open(ledger, guard, chosen, seat, tokens, visible, 0, asked->now);
            } else {
                oldest = ledger_hold(ledger, charge, seat, 0, asked->now);
            }
            count_bump(ledger_rows(ledger), PICKS_WORD);
            picker->picks += 1;
        }
        UNLOCK(&ledger->lock);
        UNLOCK(&picker->lock);
        ledger_free_charge(oldest);
        if (index >= 0) {
            if (asked->keep) {
                keep(picker, asked->sequence);
            }
            return 1;
        }
        if (index == SLOW) {
            return 0;
        }
        PyObject *tuple = asked->is_list ? PyList_AsTuple(asked->sequence) : (Py_INCREF(asked->sequence), asked->sequence);
        int failed = tuple == NULL ? -1 : enrol_all(picker, tuple);
        Py_XDECREF(tuple);
        if (failed != 0) {
            return failed < 0 ? -1 : 0;
        }
    }
    return 0;
}
