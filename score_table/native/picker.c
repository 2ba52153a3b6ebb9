/* The whole way of a request in one call: objects to slots, the pick, the count.
 *
 * A Picker answers only where everything is as it should be: a live table with an up-to-date slot map, a lane,
 * and a slot for every object of a list or tuple. Anything else it leaves, with None, to its caller in Python.
 */
#include "picker.h"

#include <structmember.h>

void picker_reset_locks(struct Picker *first) {
    for (Picker *picker = first; picker != NULL; picker = picker->next) {
        picker->lock = (step_lock){0};
    }
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
    int refused = tokens < -1 ? -1 : picker_ask(picker, args[0], &asked);
    if (refused != 0) {
        return refused < 0 ? NULL : (Py_INCREF(Py_None), Py_None);
    }
    /* Made before the choice: memory for it may set off garbage collection, which may run anything. */
    Guard *guard = ledger_new_guard(picker->ledger);
    PyObject *instance = NULL;
    int done = guard == NULL ? -1 : picker_count(picker, &asked, guard, tokens, visible, NULL, &instance);
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
    int refused = picker_ask(picker, instances, &asked);
    if (refused != 0) {
        return refused < 0 ? NULL : (Py_INCREF(Py_None), Py_None);
    }
    count_charge *charge = PyMem_Malloc(sizeof *charge);
    PyObject *instance = NULL;
    int done = charge == NULL ? 0 : picker_count(picker, &asked, NULL, -1, 0, charge, &instance);
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
