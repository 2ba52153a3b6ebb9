/* The whole way of a request in one call: objects to slots, the pick, the count.
 *
 * A Picker answers only where everything is as it should be: a live table with an up-to-date slot map, a lane,
 * and a slot for every object of a list or tuple. Anything else it leaves, with None, to its caller in Python.
 */
#include "roster.h"

#include <structmember.h>

#define TURNS 64 /* cursors; as score_table/ledger/rules.py says */

typedef struct Picker {
    PyObject_HEAD
    step_lock lock; /* taken before the ledger's */
    Ledger *ledger;
    struct Picker *next; /* of the same ledger; under the ledger's lock */
    uint64_t version; /* of the ledger for which the roster was asked */
    PyObject *seat_of, *stream;
    roster roster;
    int64_t cursors[TURNS]; /* by turn_of */
    unsigned long long picks;
} Picker;

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

void picker_reset_locks(struct Picker *first) {
    for (Picker *picker = first; picker != NULL; picker = picker->next) {
        picker->lock = (step_lock){0};
    }
}

/* -- the pick ------------------------------------------------------------------------------------------------- */

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

/* What the caller asked with. */
typedef struct {
    PyObject *sequence; /* a list or tuple; without the GIL always a tuple, which no other thread can change */
    int is_list;
    Py_ssize_t length;
    int64_t now;
    int alike;        /* the list kept that looks like it; -1: none does */
    uint64_t changes; /* of the roster when that was found */
    int keep;         /* it came again: keep it */
} question;

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

/* 0; 1 where it is not for this picker; -1 with an exception set. */
static int ask(Picker *picker, PyObject *instances, question *asked) {
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

/* Choose and count in one step, into `guard` or, where that is NULL, into `charge`: 1. 0 where it is not for
 * this picker, -1 with an exception set. *instance is a new reference. */
static int pick_and_count(Picker *picker, question *asked, Guard *guard, int32_t tokens, int visible,
                          count_charge *charge, PyObject **instance) {
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
                ledger_open(ledger, guard, chosen, seat, tokens, visible, asked->now);
            } else {
                oldest = ledger_hold(ledger, charge, seat, asked->now);
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

/* dispatch(instances, hint, prompt_tokens) -> Guard or None */
static PyObject *picker_dispatch(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    Picker *picker = (Picker *)self;
    if (nargs != 3) {
        PyErr_SetString(PyExc_TypeError, "dispatch takes instances, hint and prompt_tokens");
        return NULL;
    }
    int visible = 0;
    if (args[1] != Py_None) {
        if (!PyDict_CheckExact(args[1])) {
            Py_RETURN_NONE;
        }
        PyObject *stream;
#ifdef Py_GIL_DISABLED
        PyDict_GetItemRef(args[1], picker->stream, &stream);
#else
        stream = PyDict_GetItemWithError(args[1], picker->stream);
        Py_XINCREF(stream);
#endif
        visible = stream == Py_True ? 1 : stream == NULL ? 0 : PyObject_IsTrue(stream);
        Py_XDECREF(stream);
        if (visible < 0 || PyErr_Occurred()) {
            if (!PyErr_ExceptionMatches(PyExc_Exception)) {
                return NULL;
            }
            PyErr_Clear();
            visible = 0;
        }
    }
    int32_t tokens = prompt_tokens_of(args[2]);
    question asked;
    int refused = tokens < -1 ? -1 : ask(picker, args[0], &asked);
    if (refused != 0) {
        return refused < 0 ? NULL : (Py_INCREF(Py_None), Py_None);
    }
    /* Made before the choice: memory for it may set off garbage collection, which may run anything. */
    Guard *guard = ledger_new_guard(picker->ledger);
    PyObject *instance = NULL;
    int done = guard == NULL ? -1 : pick_and_count(picker, &asked, guard, tokens, visible, NULL, &instance);
    Py_DECREF(asked.sequence);
    Py_XDECREF(instance);
    if (done == 1) {
        return (PyObject *)guard;
    }
    Py_XDECREF((PyObject *)guard);
    return done < 0 ? NULL : (Py_INCREF(Py_None), Py_None);
}

/* select(instances) -> the instance, its price held for the time a request there takes; or None */
static PyObject *picker_select(PyObject *self, PyObject *instances) {
    Picker *picker = (Picker *)self;
    question asked;
    int refused = ask(picker, instances, &asked);
    if (refused != 0) {
        return refused < 0 ? NULL : (Py_INCREF(Py_None), Py_None);
    }
    count_charge *charge = PyMem_Malloc(sizeof *charge);
    PyObject *instance = NULL;
    int done = charge == NULL ? 0 : pick_and_count(picker, &asked, NULL, -1, 0, charge, &instance);
    Py_DECREF(asked.sequence);
    if (done == 1) {
        return instance;
    }
    PyMem_Free(charge);
    return done < 0 ? NULL : (Py_INCREF(Py_None), Py_None);
}

/* -- the type ------------------------------------------------------------------------------------------------- */

static int picker_traverse(PyObject *self, visitproc visit, void *arg) {
    Picker *picker = (Picker *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT((PyObject *)picker->ledger);
    Py_VISIT(picker->seat_of);
    for (int which = 0; which < LISTS_KEPT; which++) {
        Py_VISIT(picker->roster.lists[which].copy);
    }
    for (size_t index = 0; index < picker->roster.capacity; index++) {
        Py_VISIT(picker->roster.entries[index].object);
    }
    return 0;
}

static int picker_clear(PyObject *self) {
    Picker *picker = (Picker *)self;
    dropped what = {.capacity = 0};
    roster_forget(&picker->roster, &what);
    roster_drop(&what);
    Py_CLEAR(picker->seat_of);
    return 0;
}

static void picker_dealloc(PyObject *self) {
    Picker *picker = (Picker *)self;
    PyObject_GC_UnTrack(self);
    ledger_lock(picker->ledger);
    Picker **link = &picker->ledger->pickers;
    while (*link != picker) {
        link = &(*link)->next;
    }
    *link = picker->next;
    UNLOCK(&picker->ledger->lock);
    picker_clear(self);
    Py_XDECREF((PyObject *)picker->ledger);
    Py_XDECREF(picker->stream);
    free_object(self);
}

/* Picker(ledger, seat_of): seat_of(object) gives the seat of an object that was not seen before */
static PyObject *picker_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *ledger, *seat_of;
    module_state *state = state_of(type);
    if (kwargs != NULL && PyDict_Size(kwargs) != 0) {
        PyErr_SetString(PyExc_TypeError, "Picker takes positional arguments only");
        return NULL;
    }
    if (state == NULL || !PyArg_ParseTuple(args, "O!O", state->ledger_type, &ledger, &seat_of)) {
        return NULL;
    }
    PyObject *stream = PyUnicode_InternFromString("stream");
    Picker *picker = stream == NULL ? NULL : (Picker *)PyType_GenericAlloc(type, 0);
    if (picker == NULL) {
        Py_XDECREF(stream);
        return NULL;
    }
    picker->stream = stream;
    Py_INCREF(ledger);
    picker->ledger = (Ledger *)ledger;
    Py_INCREF(seat_of);
    picker->seat_of = seat_of;
    ledger_lock(picker->ledger);
    picker->next = picker->ledger->pickers;
    picker->ledger->pickers = picker;
    UNLOCK(&picker->ledger->lock);
    return (PyObject *)picker;
}

static PyObject *picker_cursor(PyObject *self, PyObject *argument) {
    long turn = PyLong_AsLong(argument);
    if (turn < 0 || turn >= TURNS) {
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_IndexError, "turn %ld is not from 0 to %d", turn, TURNS - 1);
    }
    return PyLong_FromLongLong(((Picker *)self)->cursors[turn]);
}

static PyObject *picker_set_cursor(PyObject *self, PyObject *args) {
    int turn;
    long long cursor;
    if (!PyArg_ParseTuple(args, "iL", &turn, &cursor)) {
        return NULL;
    }
    if (turn < 0 || turn >= TURNS || cursor < 0) {
        return PyErr_Format(PyExc_ValueError, "turn %d must be from 0 to %d, cursor %lld not negative", turn, TURNS - 1,
                            cursor);
    }
    ((Picker *)self)->cursors[turn] = cursor;
    Py_RETURN_NONE;
}

static PyMethodDef picker_methods[] = {
    {"dispatch", (PyCFunction)(void (*)(void))picker_dispatch, METH_FASTCALL,
     "dispatch(instances, hint, prompt_tokens) -> Guard, or None where the caller has to see to it"},
    {"cursor", picker_cursor, METH_O, "cursor(turn) -> slot at which the rotation goes on"},
    {"set_cursor", picker_set_cursor, METH_VARARGS, "set_cursor(turn, cursor)"},
    {"select", picker_select, METH_O, "select(instances) -> instance, or None where the caller has to see to it"},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef picker_members[] = {
    {"picks", T_ULONGLONG, offsetof(Picker, picks), READONLY, "picks made here"},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot picker_type_slots[] = {
    {Py_tp_new, picker_new},
    {Py_tp_dealloc, picker_dealloc},
    {Py_tp_traverse, picker_traverse},
    {Py_tp_clear, picker_clear},
    {Py_tp_methods, picker_methods},
    {Py_tp_members, picker_members},
    {Py_tp_doc, "Picks and counts in one call, for objects that were seen before."},
    {0, NULL},
};

PyType_Spec picker_spec = {
    .name = "score_table._native.Picker",
    .basicsize = sizeof(Picker),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = picker_type_slots,
};
