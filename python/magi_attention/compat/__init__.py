# SPDX-License-Identifier: Apache-2.0
"""What only programs written for MagiAttention need: keys of plans (keys), its collectives, and
helpers that programs import. They import these under the original's module names, which MOVED
lists: such a name is the module beside it, however it is imported. Type checkers, which run no
finder, read a stub (.pyi) for each name.
"""

from __future__ import annotations

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_ROOT = "magi_attention."
# The original's modules, and those that are imported in their place; "": a package of others.
MOVED = {
    "comm.functional": "compat.collectives",
    "comm.primitive": "compat.collectives",
    "comm.primitive.grpcoll": "compat.group_collectives",
    "comm.primitive.grpcoll._config": "config.grpcoll",
    "comm.work": "compat.work",
    "dist_attn_runtime_mgr": "compat.keys",
    "functional.dispatch": "functional.rows",
    "functional.roll": "functional.rows",
    "magi_attn_ext": "common",  # the classes of its C++ extension, whose import tests installations
    "meta": "",
    "meta.collection": "",
    "meta.collection.calc_meta": "compat.attn_arg",
    "meta.solver": "",
    "meta.solver.dispatch_solver": "config.dispatch",
    "meta.solver.overlap_solver": "config.overlap",
    "testing": "compat.testing",
    "testing.ref_attn": "compat.testing",
    "utils": "compat.utils",
    "utils.nvtx": "compat.nvtx",
    "utils.sparse_utils": "compat.sparse_utils",
}


class _Moved(MetaPathFinder, Loader):
    """Finds modules by their names in MOVED."""

    def find_spec(self, fullname: str, path=None, target=None) -> ModuleSpec | None:
        """A spec of this loader, or None for another name."""
        is_moved = fullname.startswith(_ROOT) and fullname[len(_ROOT) :] in MOVED
        return ModuleSpec(fullname, self, is_package=True) if is_moved else None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The module that stands for the name; None: an empty one."""
        home = MOVED[spec.name[len(_ROOT) :]]
        if not home:
            return None
        module = importlib.import_module(_ROOT + home)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Imports the names below; the module was executed under its own, whose spec it keeps."""
        spec = module.__spec__
        module.__spec__ = spec.loader_state or spec
        for name in MOVED:
            if (_ROOT + name).rpartition(".")[0] == spec.name:
                importlib.import_module(_ROOT + name)  # from spec.name import it


sys.meta_path.insert(0, _Moved())
