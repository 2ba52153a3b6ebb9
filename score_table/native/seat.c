/* Seat: an instance as this process counts at it. */
#include "types.h"

#include <structmember.h>

static void seat_dealloc(PyObject *self) {
    Seat *seat = (Seat *)self;
    if (seat->weak_references != NULL) {
        PyObject_ClearWeakRefs(self);
    }
    Py_XDECREF(seat->key);
    Py_XDECREF(seat->host);
    Py_XDECREF(seat->port);
    free_object(self);
}

int slot_argument(PyObject *argument, int32_t *slot) {
    long value = argument == Py_None ? -1 : PyLong_AsLong(argument);
    if (value == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (argument != Py_None && (value < 0 || value > 65535)) {
        PyErr_Format(PyExc_ValueError, "slot is %ld: it must be from 0 to 65535, or None", value);
        return -1;
    }
    *slot = (int32_t)value;
    return 0;
}

/* settle(version, slot, request, prompt_token, kv_token): for a seat that no one else has yet. */
static PyObject *seat_settle(PyObject *self, PyObject *args) {
    Seat *seat = (Seat *)self;
    unsigned long long version;
    PyObject *slot_object;
    count_prices prices;
    int32_t slot;
    if (!PyArg_ParseTuple(args, "KOddd", &version, &slot_object, &prices.request, &prices.prompt_token,
                          &prices.kv_token) ||
        slot_argument(slot_object, &slot) < 0) {
        return NULL;
    }
    seat->slot = slot;
    seat->prices = prices;
    seat->version = version;
    Py_RETURN_NONE;
}

static PyObject *seat_get_slot(PyObject *self, void *unused) {
    (void)unused;
    int32_t slot = ((Seat *)self)->slot;
    if (slot < 0) {
        Py_RETURN_NONE;
    }
    return PyLong_FromLong(slot);
}

static PyMethodDef seat_methods[] = {
    {"settle", seat_settle, METH_VARARGS, "settle(version, slot, request, prompt_token, kv_token)"},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef seat_properties[] = {
    {"slot", seat_get_slot, NULL, "slot of the instance, None where it has none", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef seat_members[] = {
    {"key", T_OBJECT_EX, offsetof(Seat, key), READONLY, NULL},
    {"host", T_OBJECT_EX, offsetof(Seat, host), READONLY, NULL},
    {"port", T_OBJECT_EX, offsetof(Seat, port), READONLY, NULL},
    {"version", T_ULONGLONG, offsetof(Seat, version), READONLY, NULL},
    {"open", T_LONGLONG, offsetof(Seat, open), READONLY, NULL},
    {"units", T_LONGLONG, offsetof(Seat, units), READONLY, NULL},
    {"hold_ns", T_LONGLONG, offsetof(Seat, hold_ns), 0, NULL},
    {"prompt_tokens", T_DOUBLE, offsetof(Seat, prompt_tokens), 0, NULL},
    {"guessed", T_BOOL, offsetof(Seat, guessed), 0, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Seat, weak_references), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot seat_type_slots[] = {
    {Py_tp_dealloc, seat_dealloc},
    {Py_tp_methods, seat_methods},
    {Py_tp_getset, seat_properties},
    {Py_tp_members, seat_members},
    {Py_tp_doc, "An instance as this process counts at it; made by Ledger.seat."},
    {0, NULL},
};

PyType_Spec seat_spec = {
    .name = "score_table._native.Seat",
    .basicsize = sizeof(Seat),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = seat_type_slots,
};
