// SPDX-License-Identifier: Apache-2.0
// Attention calls of the Python package, in Python's limited API: one module for Python 3.10 and
// later. What crosses are integers, addresses of the library's functions too, and objects that tell
// the address of their memory by data_ptr(), so the module knows no torch and links nothing. It
// hands device memory of Python functions to the library.
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>
#include <stddef.h>
#include <string.h>

#include "device_memory.h"
#include "magi/magi.h"
#include "views.h"

// Of what Python's headers know of a processor the limited API has these sizes alone, so headers of
// one processor serve another of the same sizes.
_Static_assert(sizeof(long) == SIZEOF_LONG && sizeof(void*) == SIZEOF_VOID_P &&
                   sizeof(size_t) == SIZEOF_SIZE_T,
               "Python's headers are for another processor");

enum {
  kQ,
  kK,
  kV,
  kSink,
  kOut,
  kLse,
  kMaxLogits,
  kDout,
  kDlse,
  kDq,
  kDk,
  kDv,
  kDsink,
  kNumTensors
};

// Places of the other arguments of `forward`, which takes q to max_logits in front of them, and of
// `backward`, which takes all tensors but max_logits: there those behind it are one place ahead.
enum { kForwardStream = kMaxLogits + 1, kForwardCount };
enum { kBackwardWorkspace = kNumTensors - 1, kBackwardBytes, kBackwardStream, kBackwardCount };

// The structs of a call, pointing into themselves.
typedef struct Block {
  magi_tensor tensors[kNumTensors];
  magi_attention_inputs inputs;
  magi_attention_result result;
  magi_attention_gradients gradients;
  magi_workspace workspace;
} Block;

typedef magi_status (*Forward)(void*, const magi_attention_inputs*, const magi_attention_result*,
                               void*);
typedef magi_status (*Backward)(void*, const magi_attention_inputs*, const magi_attention_result*,
                                const magi_attention_gradients*, void*);
typedef magi_status (*BackwardBytes)(void*, const magi_attention_inputs*,
                                     const magi_attention_result*, const magi_attention_gradients*,
                                     size_t*);
typedef magi_status (*RangesForward)(void*, const magi_attention_inputs*,
                                     const magi_attention_result*, void*, void*);
typedef magi_status (*RangesBytes)(void*, const magi_attention_inputs*, size_t*);

// Calls of one kind of tensors. `block` is the pattern of their structs, without addresses; each
// call works on a copy of its own, so that threads may share this.
typedef struct PreparedCall {
  PyObject_HEAD Block block;
  Forward forward;
  Backward backward;
  void* handle;
  int has_sink;
  int with_max_logits;
  size_t forward_bytes;   // memory that the last forward asked for first
  size_t backward_bytes;  // likewise
} PreparedCall;

// How errors name the tensors of a call.
static const char* const kTensorNames[kNumTensors] = {
    "q",  "k",  "v",  "sink", "out", "lse", "max_logits", "the gradient of out", "the gradient of lse",
    "dq", "dk", "dv", "dsink"};

// memory_of(name, tensor) of Python: the address of a tensor whose address is no usual one, or an
// exception that names it. Lower addresses than `lowest_usual` are none.
static PyObject* memory_function;
static PyObject* data_ptr_name;
static unsigned long long lowest_usual;

// Null where torch is too old to have one.
static ReadView read_view;

// Refuses another number of arguments than `wanted`.
static int check_count(Py_ssize_t count, Py_ssize_t wanted) {
  if (count == wanted) return 1;
  PyErr_Format(PyExc_TypeError, "%zd arguments are given; allowed: %zd", count, wanted);
  return 0;
}

// `wanted` integers of a call's arguments; 0 with an exception set where they are others.
static int read_integers(PyObject* const* args, Py_ssize_t count, Py_ssize_t wanted,
                         unsigned long long* values) {
  if (!check_count(count, wanted)) return 0;
  for (Py_ssize_t i = 0; i < count; ++i) {
    values[i] = PyLong_AsUnsignedLongLong(args[i]);
    if (values[i] == (unsigned long long)-1 && PyErr_Occurred()) return 0;
  }
  return 1;
}

// The address of a tensor's memory, which is looked at closely where it is no usual one; 0 with an
// exception set where it has none.
static int read_memory(PyObject* tensor, const char* name, unsigned long long* value) {
  PyObject* found = PyObject_CallMethodObjArgs(tensor, data_ptr_name, NULL);
  if (found != NULL) {
    *value = PyLong_AsUnsignedLongLong(found);
    Py_DECREF(found);
    if (*value >= lowest_usual && PyErr_Occurred() == NULL) return 1;
  }
  PyErr_Clear();
  if (memory_function == NULL) {
    PyErr_SetString(PyExc_RuntimeError, "use_memory_of was not called");
    return 0;
  }
  found = PyObject_CallFunction(memory_function, "sO", name, tensor);
  if (found == NULL) return 0;
  *value = PyLong_AsUnsignedLongLong(found);
  Py_DECREF(found);
  return PyErr_Occurred() == NULL;
}

// The addresses of a call's tensors: each is a tensor, its address, or None for 0.
static int read_tensors(PyObject* const* args, Py_ssize_t count, const char* const* names,
                        unsigned long long* values) {
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (args[i] == Py_None) {
      values[i] = 0;
    } else if (PyLong_Check(args[i])) {
      if (!read_integers(args + i, 1, 1, values + i)) return 0;
    } else if (!read_memory(args[i], names[i], values + i)) {
      return 0;
    }
  }
  return 1;
}

// Addresses of q to lse for functions that read shapes alone.
static const unsigned long long kNoData[6] = {0};

static Block make_block(const PreparedCall* call) {
  Block block;
  memcpy(&block, &call->block, sizeof block);
  return block;
}

// Pointers within the block, once it lies where it stays. values: the addresses of q, k, v, sink,
// out, lse.
static void fill(Block* block, const PreparedCall* call, const unsigned long long* values) {
  magi_tensor* tensors = block->tensors;
  for (int i = kQ; i <= kLse; ++i) tensors[i].data = address(values[i]);
  block->inputs.q = &tensors[kQ];
  block->inputs.k = &tensors[kK];
  block->inputs.v = &tensors[kV];
  block->inputs.sink = call->has_sink ? &tensors[kSink] : NULL;
  block->result.out = &tensors[kOut];
  block->result.lse = &tensors[kLse];
}

static void fill_max_logits(Block* block, const PreparedCall* call, unsigned long long value) {
  block->tensors[kMaxLogits].data = address(value);
  block->result.max_logits = call->with_max_logits ? &block->tensors[kMaxLogits] : NULL;
}

static void fill_gradients(Block* block, const PreparedCall* call, int has_dlse) {
  magi_tensor* tensors = block->tensors;
  block->gradients.dout = &tensors[kDout];
  block->gradients.dlse = has_dlse ? &tensors[kDlse] : NULL;
  block->gradients.dq = &tensors[kDq];
  block->gradients.dk = &tensors[kDk];
  block->gradients.dv = &tensors[kDv];
  block->gradients.dsink = call->has_sink ? &tensors[kDsink] : NULL;
}

static PyObject* forward(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  PreparedCall* call = (PreparedCall*)self;
  unsigned long long values[kForwardCount];
  if (!check_count(count, kForwardCount) ||
      !read_tensors(args, kForwardStream, kTensorNames, values) ||
      !read_integers(args + kForwardStream, 1, 1, values + kForwardStream)) {
    return NULL;
  }
  Block block = make_block(call);
  fill(&block, call, values);
  fill_max_logits(&block, call, values[kMaxLogits]);
  void* const stream = address(values[kForwardStream]);
  CallMemory memory;
  begin_memory(&memory, call->forward_bytes, block.tensors[kQ].device, stream);
  PyThreadState* const thread = PyEval_SaveThread();
  const magi_status status = call->forward(call->handle, &block.inputs, &block.result, stream);
  PyEval_RestoreThread(thread);
  call->forward_bytes = end_memory(&memory);
  return PyLong_FromLong(status);
}

// values: the arguments of `backward`.
static PyObject* run_backward(PreparedCall* call, Backward function, void* handle,
                              const unsigned long long* values) {
  Block block = make_block(call);
  fill(&block, call, values);
  for (int i = kDout; i <= kDsink; ++i) block.tensors[i].data = address(values[i - 1]);
  fill_gradients(&block, call, values[kDlse - 1] != 0);
  block.workspace.data = address(values[kBackwardWorkspace]);
  block.workspace.size_bytes = (size_t)values[kBackwardBytes];
  block.gradients.workspace = values[kBackwardWorkspace] != 0 ? &block.workspace : NULL;
  void* const stream = address(values[kBackwardStream]);
  CallMemory memory;
  begin_memory(&memory, call->backward_bytes, block.tensors[kQ].device, stream);
  PyThreadState* const thread = PyEval_SaveThread();
  const magi_status status =
      function(handle, &block.inputs, &block.result, &block.gradients, stream);
  PyEval_RestoreThread(thread);
  call->backward_bytes = end_memory(&memory);
  return PyLong_FromLong(status);
}

static PyObject* backward(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  PreparedCall* call = (PreparedCall*)self;
  unsigned long long values[kBackwardCount];
  static const char* const kWorkspace = "the workspace";
  const int dout = kDout - 1;
  unsigned long long* const workspace = values + kBackwardWorkspace;
  unsigned long long* const size_bytes = values + kBackwardBytes;
  if (!check_count(count, kBackwardCount) ||
      !read_tensors(args, dout, kTensorNames, values) ||
      !read_tensors(args + dout, kNumTensors - kDout, kTensorNames + kDout, values + dout) ||
      !read_tensors(args + kBackwardWorkspace, 1, &kWorkspace, workspace) ||
      !read_integers(args + kBackwardBytes, 2, 2, size_bytes)) {
    return NULL;
  }
  const int is_taken = args[kBackwardWorkspace] == Py_None && *size_bytes != 0;
  if (is_taken) {
    void* const data = take_workspace(*size_bytes, values[kBackwardStream]);
    if (data == NULL) return NULL;
    *workspace = (unsigned long long)(uintptr_t)data;
  }
  PyObject* const status = run_backward(call, call->backward, call->handle, values);
  if (is_taken) python_release(address(*workspace));
  return status;
}

static PyObject* fits(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  const PreparedCall* call = (const PreparedCall*)self;
  if (!check_count(count, kLse + 1)) return NULL;
  for (int i = kQ; i <= kLse; ++i) {
    View view;
    if (i == kSink && !call->has_sink) continue;
    if (read_view == NULL || read_view(args[i], &view) != 0 ||
        !is_like(&view, &call->block.tensors[i])) {
      PyErr_Clear();
      Py_RETURN_FALSE;
    }
  }
  Py_RETURN_TRUE;
}

static PyObject* ranges_backward(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  PreparedCall* call = (PreparedCall*)self;
  unsigned long long values[17];
  if (!read_integers(args, count, 17, values)) return NULL;
  return run_backward(call, (Backward)address(values[0]), address(values[1]), values + 2);
}

static PyObject* ranges_backward_bytes(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  const PreparedCall* call = (const PreparedCall*)self;
  unsigned long long values[3];
  if (!read_integers(args, count, 3, values)) return NULL;
  Block block = make_block(call);
  fill(&block, call, kNoData);
  fill_gradients(&block, call, 0);
  PyThreadState* const thread = PyEval_SaveThread();
  const magi_status status = ((BackwardBytes)address(values[0]))(
      address(values[1]), &block.inputs, &block.result, &block.gradients, address(values[2]));
  PyEval_RestoreThread(thread);
  return PyLong_FromLong(status);
}

static PyObject* ranges_forward(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  const PreparedCall* call = (const PreparedCall*)self;
  unsigned long long values[11];
  if (!read_integers(args, count, 11, values)) return NULL;
  Block block = make_block(call);
  fill(&block, call, values + 3);
  fill_max_logits(&block, call, values[9]);
  PyThreadState* const thread = PyEval_SaveThread();
  const magi_status status = ((RangesForward)address(values[0]))(
      address(values[1]), &block.inputs, &block.result, address(values[2]), address(values[10]));
  PyEval_RestoreThread(thread);
  return PyLong_FromLong(status);
}

static PyObject* ranges_bytes(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  const PreparedCall* call = (const PreparedCall*)self;
  unsigned long long values[3];
  if (!read_integers(args, count, 3, values)) return NULL;
  Block block = make_block(call);
  fill(&block, call, kNoData);
  PyThreadState* const thread = PyEval_SaveThread();
  const magi_status status =
      ((RangesBytes)address(values[0]))(address(values[1]), &block.inputs, address(values[2]));
  PyEval_RestoreThread(thread);
  return PyLong_FromLong(status);
}

// PreparedCall(tensors, scale, softcap, sink_layout, sm_margin, is_fast_backward, has_sink,
// with_max_logits, forward, backward, handle, backend); tensors: the magi_tensor structs as bytes;
// backend: the address of a name that outlives the call, or 0.
static PyObject* prepared_call_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  const char* tensors;
  Py_ssize_t num_bytes;
  double scale, softcap;
  int sink_layout, sm_margin, is_fast_backward, has_sink, with_max_logits;
  unsigned long long functions[4];
  if (kwargs != NULL && PyDict_Size(kwargs) != 0) {
    PyErr_SetString(PyExc_TypeError, "PreparedCall takes no keyword arguments");
    return NULL;
  }
  if (!PyArg_ParseTuple(args, "y#ddiipppKKKK", &tensors, &num_bytes, &scale, &softcap, &sink_layout,
                        &sm_margin, &is_fast_backward, &has_sink, &with_max_logits, &functions[0],
                        &functions[1], &functions[2], &functions[3])) {
    return NULL;
  }
  if (num_bytes != (Py_ssize_t)(kNumTensors * sizeof(magi_tensor))) {
    PyErr_Format(PyExc_ValueError, "tensors has %zd bytes; allowed: %zu", num_bytes,
                 kNumTensors * sizeof(magi_tensor));
    return NULL;
  }
  const allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
  PreparedCall* call = (PreparedCall*)allocate(type, 0);
  if (call == NULL) return NULL;
  memset(&call->block, 0, sizeof call->block);
  memcpy(call->block.tensors, tensors, (size_t)num_bytes);
  call->block.inputs = (magi_attention_inputs){.struct_size = sizeof(magi_attention_inputs),
                                               .softmax_scale = scale,
                                               .softcap = softcap,
                                               .sink_layout = sink_layout,
                                               .sm_margin = sm_margin,
                                               .is_fast_backward = is_fast_backward,
                                               .backend = (const char*)address(functions[3])};
  call->block.result.struct_size = sizeof(magi_attention_result);
  call->block.gradients.struct_size = sizeof(magi_attention_gradients);
  call->block.workspace.struct_size = sizeof(magi_workspace);
  call->forward = (Forward)address(functions[0]);
  call->backward = (Backward)address(functions[1]);
  call->handle = address(functions[2]);
  call->has_sink = has_sink;
  call->with_max_logits = with_max_logits;
  call->forward_bytes = call->backward_bytes = 0;
  return (PyObject*)call;
}

static void prepared_call_free(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  const freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
  release(self);
  Py_DECREF(type);
}

#define METHOD(function, text) \
  { #function, (PyCFunction)(void (*)(void))(function), METH_FASTCALL, text }
static PyMethodDef kMethods[] = {
    METHOD(forward,
           "forward(q, k, v, sink, out, lse, max_logits, stream) -> status; tensors, or their "
           "addresses"),
    METHOD(backward,
           "backward(q, k, v, sink, out, lse, dout, dlse, dq, dk, dv, dsink, workspace, "
           "workspace_bytes, stream) -> status; tensors, or their addresses; workspace None: taken "
           "from the allocator for this call"),
    METHOD(fits,
           "fits(q, k, v, sink, out, lse) -> whether tensors have the shapes, strides, types and "
           "device of this call's"),
    METHOD(ranges_forward,
           "ranges_forward(function, ranges, workspace, q, k, v, sink, out, lse, max_logits, "
           "stream) -> status"),
    METHOD(ranges_bytes, "ranges_bytes(function, ranges, size) -> status"),
    METHOD(ranges_backward,
           "ranges_backward(function, ranges, q, k, v, sink, out, lse, dout, dlse, dq, dk, dv, "
           "dsink, workspace, workspace_bytes, stream) -> status"),
    METHOD(ranges_backward_bytes, "ranges_backward_bytes(function, ranges, size) -> status"),
    {NULL, NULL, 0, NULL}};
#undef METHOD

static PyType_Slot kSlots[] = {
    {Py_tp_doc, "Attention of tensors of one kind; None, or 0 as an address, where there is none."},
    {Py_tp_new, prepared_call_new},
    {Py_tp_dealloc, prepared_call_free},
    {Py_tp_methods, kMethods},
    {0, NULL}};
static PyType_Spec kSpec = {.name = "magi_attention._native._calls.PreparedCall",
                            .basicsize = sizeof(PreparedCall),
                            .flags = Py_TPFLAGS_DEFAULT,
                            .slots = kSlots};

// use_memory_of(memory_of, lowest_usual)
static PyObject* use_memory_of(PyObject* self, PyObject* args) {
  (void)self;
  PyObject* function;
  unsigned long long lowest;
  if (!PyArg_ParseTuple(args, "OK", &function, &lowest)) return NULL;
  PyObject* const earlier = memory_function;
  Py_INCREF(function);
  memory_function = function;
  lowest_usual = lowest;
  Py_XDECREF(earlier);
  Py_RETURN_NONE;
}

// use_views_of(capsule) -> bool
static PyObject* use_views_of(PyObject* self, PyObject* capsule) {
  (void)self;
  const ViewFunctions* const found = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
  if (found == NULL) return NULL;
  read_view = found->major_version == 1 ? found->read_view : NULL;
  return PyBool_FromLong(read_view != NULL);
}

static PyMethodDef kFunctions[] = {
    {"use_views_of", use_views_of, METH_O,
     "use_views_of(capsule) -> whether PreparedCall.fits asks this interface of DLPack's from now"},
    {"use_memory_of", use_memory_of, METH_VARARGS,
     "use_memory_of(memory_of, lowest_usual): memory_of(name, tensor) -> address, called where "
     "tensor.data_ptr() is below lowest_usual or raises"},
    {"use_allocator", use_allocator, METH_VARARGS,
     "use_allocator(allocate, release, current_device): allocate(bytes, stream) -> address of "
     "memory of the GPU current_device(), RuntimeError where there is none; release(address)"},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef kModule = {.m_base = PyModuleDef_HEAD_INIT,
                                     .m_name = "magi_attention._native._calls",
                                     .m_doc = "Attention calls over the C ABI of libmagi.",
                                     .m_size = -1,
                                     .m_methods = kFunctions};

// Adds `value`, which may be NULL, and takes its reference; 0 with an exception set on failure.
static int add(PyObject* module, const char* name, PyObject* value) {
  if (value != NULL && PyModule_AddObject(module, name, value) == 0) return 1;
  Py_XDECREF(value);
  return 0;
}

// The size of magi_tensor, and the offsets of its fields in their order: what packs one in Python
// is compared with.
static PyObject* tensor_layout(void) {
  return Py_BuildValue(
      "(nnnnnnnn)", (Py_ssize_t)sizeof(magi_tensor), (Py_ssize_t)offsetof(magi_tensor, struct_size),
      (Py_ssize_t)offsetof(magi_tensor, data), (Py_ssize_t)offsetof(magi_tensor, dtype),
      (Py_ssize_t)offsetof(magi_tensor, device), (Py_ssize_t)offsetof(magi_tensor, rank),
      (Py_ssize_t)offsetof(magi_tensor, shape), (Py_ssize_t)offsetof(magi_tensor, stride));
}

PyMODINIT_FUNC PyInit__calls(void) {
  data_ptr_name = PyUnicode_InternFromString("data_ptr");
  PyObject* module = data_ptr_name == NULL ? NULL : PyModule_Create(&kModule);
  if (module == NULL) return NULL;
  if (add(module, "PreparedCall", PyType_FromSpec(&kSpec)) &&
      add(module, "TENSOR_LAYOUT", tensor_layout()) &&
      add(module, "ALLOCATE", PyLong_FromVoidPtr((void*)(uintptr_t)allocate)) &&
      add(module, "RELEASE", PyLong_FromVoidPtr((void*)(uintptr_t)release))) {
    return module;
  }
  Py_DECREF(module);
  return NULL;
}
