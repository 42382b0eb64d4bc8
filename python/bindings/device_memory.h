// SPDX-License-Identifier: Apache-2.0
// Device memory of calls, which functions of Python give. calls.c includes it, behind Python.h.
#pragma once

#include <Python.h>
#include <stddef.h>
#include <stdint.h>

// Where device memory of calls comes from: functions of Python. allocate(bytes, stream) gives the
// address of memory of the current GPU, which current_device() tells; release(address).
static PyObject* allocate_function;
static PyObject* release_function;
static PyObject* device_function;

enum { kMostReleased = 8 };

// Memory of the call that a thread is in. To enter the interpreter from within the library costs
// more than all else here, so that memory is taken before the call and given back behind it.
typedef struct CallMemory {
  struct CallMemory* outer;
  void* stream;
  void* lent;  // null: none, or it was taken and not given back
  size_t lent_bytes;
  size_t first_bytes;  // of the first request; 0: none came
  void* released[kMostReleased];
  int num_released;
} CallMemory;
static _Thread_local CallMemory* current_call;

static void* address(unsigned long long value) { return (void*)(uintptr_t)value; }

// Null where there is no memory: the library tells of it.
static void* python_allocate(size_t size_bytes, void* stream) {
  if (allocate_function == NULL) return NULL;
  PyObject* const found =
      PyObject_CallFunction(allocate_function, "KK", (unsigned long long)size_bytes,
                            (unsigned long long)(uintptr_t)stream);
  const unsigned long long data = found == NULL ? 0 : PyLong_AsUnsignedLongLong(found);
  Py_XDECREF(found);
  if (PyErr_Occurred() == NULL) return address(data);
  if (PyErr_ExceptionMatches(PyExc_RuntimeError)) {
    PyErr_Clear();  // torch.OutOfMemoryError is one
  } else {
    PyErr_WriteUnraisable(allocate_function);
  }
  return NULL;
}

static void python_release(void* data) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyObject* const none =
      PyObject_CallFunction(release_function, "K", (unsigned long long)(uintptr_t)data);
  if (none == NULL) PyErr_WriteUnraisable(release_function);
  Py_XDECREF(none);
  PyErr_Restore(type, value, traceback);
}

// magi_device_allocator.allocate
static void* allocate(void* context, size_t size_bytes, int32_t device, void* stream) {
  (void)context;
  (void)device;
  CallMemory* const call = current_call;
  if (call != NULL) {
    if (call->first_bytes == 0) call->first_bytes = size_bytes;
    if (call->lent != NULL && size_bytes <= call->lent_bytes && stream == call->stream) {
      void* const data = call->lent;
      call->lent = NULL;
      return data;
    }
  }
  const PyGILState_STATE state = PyGILState_Ensure();
  void* const data = python_allocate(size_bytes, stream);
  PyGILState_Release(state);
  return data;
}

// magi_device_allocator.release
static void release(void* context, void* data, size_t size_bytes, int32_t device, void* stream) {
  (void)context;
  (void)device;
  CallMemory* const call = current_call;
  if (call != NULL && call->lent == NULL && stream == call->stream) {
    call->lent = data;  // a call that comes in sections asks again
    call->lent_bytes = size_bytes;
    return;
  }
  if (call != NULL && call->num_released < kMostReleased) {
    call->released[call->num_released++] = data;
    return;
  }
  if (!Py_IsInitialized()) return;  // the process ends, which gives all memory back
  const PyGILState_STATE state = PyGILState_Ensure();
  python_release(data);
  PyGILState_Release(state);
}

// Whether a GPU is the current one, of which the allocator gives memory.
static int is_current(int32_t device) {
  PyObject* const found = PyObject_CallFunctionObjArgs(device_function, NULL);
  const long number = found == NULL ? -1 : PyLong_AsLong(found);
  Py_XDECREF(found);
  PyErr_Clear();
  return number == device;
}

// Takes what a call like the one before asks for. The interpreter is held.
static void begin_memory(CallMemory* memory, size_t size_bytes, int32_t device, void* stream) {
  memory->outer = current_call;
  memory->stream = stream;
  memory->lent = NULL;
  memory->lent_bytes = size_bytes;
  memory->first_bytes = 0;
  memory->num_released = 0;
  if (size_bytes > 0 && is_current(device)) memory->lent = python_allocate(size_bytes, stream);
  current_call = memory;
}

// Gives back what the call released. Returns what it asked for first.
static size_t end_memory(CallMemory* memory) {
  current_call = memory->outer;
  if (memory->lent != NULL) python_release(memory->lent);
  for (int i = 0; i < memory->num_released; ++i) python_release(memory->released[i]);
  return memory->first_bytes;
}

// Device memory on a stream; null with an exception set where there is none.
static void* take_workspace(unsigned long long size_bytes, unsigned long long stream) {
  if (allocate_function == NULL) {
    PyErr_SetString(PyExc_RuntimeError, "use_allocator was not called");
    return NULL;
  }
  PyObject* const found = PyObject_CallFunction(allocate_function, "KK", size_bytes, stream);
  if (found == NULL) return NULL;
  void* const data = address(PyLong_AsUnsignedLongLong(found));
  Py_DECREF(found);
  if (PyErr_Occurred() != NULL) return NULL;
  if (data == NULL) {
    PyErr_SetString(PyExc_RuntimeError, "the allocator gave no memory");
  }
  return data;
}

// use_allocator(allocate, release, current_device)
static PyObject* use_allocator(PyObject* self, PyObject* args) {
  (void)self;
  PyObject* functions[3];
  if (!PyArg_ParseTuple(args, "OOO", &functions[0], &functions[1], &functions[2])) return NULL;
  PyObject** const places[] = {&allocate_function, &release_function, &device_function};
  for (int i = 0; i < 3; ++i) {
    PyObject* const earlier = *places[i];
    Py_INCREF(functions[i]);
    *places[i] = functions[i];
    Py_XDECREF(earlier);
  }
  Py_RETURN_NONE;
}
