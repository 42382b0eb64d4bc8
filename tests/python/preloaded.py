# SPDX-License-Identifier: Apache-2.0
"""What ranks use, imported once by the process that they are forked from."""

import contextlib
import importlib
import threading
import warnings

for _name in ("torch", "transformers.trainer", "peft", "megatron.core"):
    # Who needs what is not here, or does not fit, says so.
    with contextlib.suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module(_name)

with contextlib.suppress(ImportError):
    from tqdm import tqdm

    # Its own is of processes, which ranks that are killed leave behind.
    tqdm.set_lock(threading.RLock())
