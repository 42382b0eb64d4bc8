# SPDX-License-Identifier: Apache-2.0
"""libmagi through ctypes: prototypes, errors, buffers; and the module of attention calls."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import threading

from magi_attention._environment import library_path
from magi_attention._native.structs import check_bits
from magi_attention.errors import CommError

ABI_VERSION = 5

# One letter per argument: p address, i int32, q int64, z size_t, s text.
_PROTOTYPES = {
    "magi_set_log_sink": "ppi", "magi_mask_from_ranges": "pp", "magi_mask_from_slices": "pqiip",
    "magi_mask_from_cu_seqlens": "pqpqpp", "magi_mask_from_window": "pp",
    "magi_mask_from_matrix": "piip", "magi_mask_from_runs": "pipqip", "magi_mask_from_form": "spqp",
    "magi_mask_from_json": "szp", "magi_mask_to_json": "pp", "magi_mask_rows": "ppp",
    "magi_mask_slices": "pp", "magi_mask_typed_slices": "pp", "magi_mask_runs": "ppp",
    "magi_mask_transpose": "pp", "magi_mask_area": "pp", "magi_mask_reach": "ppp",
    "magi_mask_draw_part": "psppp", "magi_placement_get_info": "pp",
    "magi_placement_rows_of": "pip", "magi_placement_position_ids": "piip",
    "magi_plan_create": "ppp", "magi_plan_create_on": "ppppp", "magi_plan_from_json": "szp",
    "magi_plan_to_json": "pp", "magi_plan_config_read_cost": "psz", "magi_plan_describe": "pp",
    "magi_plan_draw": "pisp", "magi_plan_predict_steps": "piip", "magi_plan_runs": "pp",
    "magi_plan_check": "pp", "magi_plan_equal": "ppp", "magi_plan_placement_q": "pp",
    "magi_plan_mask": "pp", "magi_plan_get_report": "pp", "magi_thread_group_create": "ipp",
    "magi_communicator_from_vtable": "pp", "magi_nvlink_group_create": "pipp",
    "magi_nccl_group_create": "pipp", "magi_communicator_abort": "ps",
    "magi_communicator_check": "p", "magi_communicator_rank": "ppp",
    "magi_communicator_counters": "pp", "magi_exchange_start": "ppp",
    "magi_exchange_wait_sync": "p", "magi_undispatch": "ppppp", "magi_undispatch_backward": "pppp",
    "magi_roll": "pppp", "magi_attention_create_with": "pppp",
    "magi_attention_backend_register": "p", "magi_attention_backend_unregister": "s",
    "magi_attention_get_limits": "sip", "magi_attention_start_trace": "p",
    "magi_attention_stop_trace": "pp", "magi_attention_workspace_bytes": "pp",
    "magi_flex_ranges_report_sync": "ppp", "magi_flex_ranges_backward_report_sync": "ppp",
}  # fmt: skip
_VOID_PROTOTYPES = {
    "magi_buffer_destroy": "p", "magi_mask_destroy": "p", "magi_placement_config_init": "p",
    "magi_placement_destroy": "p", "magi_plan_config_init": "p", "magi_plan_destroy": "p",
    "magi_comm_options_init": "p", "magi_nccl_options_init": "p", "magi_communicator_destroy": "p",
    "magi_exchange_destroy": "p", "magi_attention_options_init": "p", "magi_attention_destroy": "p",
}  # fmt: skip


class _Checked:
    """The type of an argument whose high bits ctypes would drop in silence."""

    def __init__(self, kind) -> None:
        self._kind = kind

    def from_param(self, value):
        """ctypes asks for what it hands over."""
        if not 0 <= value < 1 << 31:
            check_bits("an argument of the library", value, self._kind)
        return self._kind(value)


_LETTERS = {
    "p": ctypes.c_void_p, "i": _Checked(ctypes.c_int32), "q": _Checked(ctypes.c_int64),
    "z": _Checked(ctypes.c_size_t), "d": ctypes.c_double, "s": ctypes.c_char_p,
}  # fmt: skip


_CALLS = "magi_attention._native._calls"


def library_file() -> str:
    """The file that is loaded: the package's own, or that of MAGI_ATTENTION_LIBRARY."""
    return library_path() or os.path.join(os.path.dirname(os.path.dirname(__file__)), "libmagi.so")


def _load() -> ctypes.CDLL:
    path = library_file()
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"libmagi cannot be loaded from {path}: {error}") from None
    try:
        found = library.magi_abi_version()
        if found != ABI_VERSION:
            raise ImportError(f"{path} has ABI {found}; allowed: {ABI_VERSION}")
        _describe(library)
    except AttributeError as error:  # dlsym's words
        raise ImportError(_other_library(path, error)) from None
    return library


def _other_library(path: str, error: AttributeError) -> str:
    return f"{path} is not this package's libmagi: {error}"


def _set_types(
    library: ctypes.CDLL, prototypes: dict[str, str], void_prototypes: dict[str, str]
) -> None:
    """Sets the types of functions for ctypes; AttributeError for one that is missing."""
    for table, result in ((prototypes, ctypes.c_int32), (void_prototypes, None)):
        for name, letters in table.items():
            function = getattr(library, name)
            function.argtypes = [_LETTERS[letter] for letter in letters]
            function.restype = result


def _describe(library: ctypes.CDLL) -> None:
    """Sets the types of the functions that every program calls."""
    _set_types(library, _PROTOTYPES, _VOID_PROTOTYPES)
    for name in ("magi_last_error_message", "magi_version", "magi_gpu_architectures"):
        getattr(library, name).restype = ctypes.c_char_p
    library.magi_communicator_backend.argtypes = [ctypes.c_void_p]
    library.magi_communicator_backend.restype = ctypes.c_char_p
    library.magi_buffer_data.argtypes = [ctypes.c_void_p]
    library.magi_buffer_data.restype = ctypes.c_void_p
    library.magi_buffer_size_bytes.argtypes = [ctypes.c_void_p]
    library.magi_buffer_size_bytes.restype = ctypes.c_size_t


def _load_calls():
    """The module of attention calls: the package's, or the one beside another library."""
    if not library_path():
        return importlib.import_module(_CALLS)
    path = os.path.join(os.path.dirname(os.path.abspath(library_path())), "_calls.abi3.so")
    if not os.path.exists(path):
        raise ImportError(f"{path} is missing; allowed: a libmagi.so with _calls.abi3.so beside it")
    spec = importlib.util.spec_from_file_location(_CALLS, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


lib = _load()
_calls = _load_calls()
PreparedCall, TENSOR_LAYOUT = _calls.PreparedCall, _calls.TENSOR_LAYOUT
# Whom a prepared call asks where the address of a tensor is no usual one.
use_memory_of = _calls.use_memory_of
use_views_of = _calls.use_views_of
# Device memory of calls: whom the library asks, and who gives that what it has.
ALLOCATE, RELEASE, use_allocator = _calls.ALLOCATE, _calls.RELEASE, _calls.use_allocator

_INVALID_ARGUMENT, _CUDA_ERROR, _COMM_ERROR, _INTERNAL_ERROR, _OUT_OF_MEMORY = 1, 2, 3, 4, 5


ends: dict[int, BaseException] = {}  # by thread, what is to end the program


def keep_end(error: BaseException) -> None:
    """Guards functions that the library calls: nothing may unwind into C, so what ends the program
    (KeyboardInterrupt, SystemExit) waits for the `check` of the call under way.
    """
    if not isinstance(error, Exception):
        ends[threading.get_ident()] = error


def words_of(error: BaseException, is_named: bool = False) -> ctypes.Array:
    """Returns what an exception of a caller's function says, as a C string, and with is_named its
    type: that may hold what no UTF-8 has, and may raise itself.
    """
    try:
        text = str(error)
    except BaseException as other:
        text = f"no text, as str() of it raised {type(other).__name__}"
    name = f"{type(error).__name__}: " if is_named else ""
    return ctypes.create_string_buffer((name + text).encode(errors="backslashreplace"))


def check(status: int) -> None:
    """Raises what a status other than 0 stands for, with the library's sentence, or what was kept
    for the end of the call.
    """
    end = ends.pop(threading.get_ident(), None) if ends else None
    if end is not None:
        raise end
    if status == 0:
        return
    message = lib.magi_last_error_message().decode(errors="replace")
    if status == _INVALID_ARGUMENT:
        raise ValueError(message)
    if status == _COMM_ERROR:
        raise CommError(message, lib.magi_last_comm_failure())
    if status == _OUT_OF_MEMORY:
        raise MemoryError(message)
    raise RuntimeError(message)


def address_of(name: str) -> int:
    """The address of a function of the library; ImportError for one that is missing."""
    try:
        return ctypes.cast(getattr(lib, name), ctypes.c_void_p).value
    except AttributeError as error:
        raise ImportError(_other_library(library_file(), error)) from None


def describe(prototypes: dict[str, str], void_prototypes: dict[str, str]) -> None:
    """Tells ctypes the types of further functions; ImportError for one that is missing."""
    try:
        _set_types(lib, prototypes, void_prototypes)
    except AttributeError as error:
        raise ImportError(_other_library(library_file(), error)) from None


def version() -> str:
    return lib.magi_version().decode()


def gpu_architectures() -> str:
    """GPU architectures that the library holds kernels for, separated by spaces."""
    return lib.magi_gpu_architectures().decode()


def told(kind, function, *arguments) -> int:
    """The number of a type of ctypes that function(*arguments, its address) writes."""
    number = kind()
    check(function(*arguments, ctypes.addressof(number)))
    return number.value


def take_bytes(function, *arguments) -> bytes:
    """The contents of the magi_buffer that function(*arguments, address of its pointer) makes."""
    return bytes_of(made(function, *arguments))


def bytes_of(buffer: int) -> bytes:
    """The contents of a magi_buffer, which is destroyed."""
    try:
        size = lib.magi_buffer_size_bytes(buffer)
        return ctypes.string_at(lib.magi_buffer_data(buffer), size)
    finally:
        lib.magi_buffer_destroy(buffer)


class Handle:
    """Owns one opaque object of the library; `destroy` is its function's name."""

    destroy = ""
    __slots__ = ("__weakref__", "address")

    def __init__(self, address: int) -> None:
        self.address = address

    def __copy__(self) -> Handle:
        return self  # another owner would destroy the object again

    def __deepcopy__(self, memo: dict) -> Handle:
        return self

    def __reduce__(self):
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled, as it is an address in this process; "
            "allowed: what it was made of"
        )

    def __del__(self) -> None:
        if getattr(self, "address", None) and lib is not None:
            getattr(lib, self.destroy)(self.address)
            self.address = None


def made(function, *arguments) -> int:
    """The address that function(*arguments, address of the result) wrote."""
    result = ctypes.c_void_p()
    check(function(*arguments, ctypes.addressof(result)))
    return result.value
