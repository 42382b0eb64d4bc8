# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

import log_cases as cases
from magi_attention._native.profile import named_range


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("case", [cases.logged, cases.profiled])
def test_calls_say_what_is_asked_for(ranks, size, case):
    ranks.run(size, case)


def test_ranges_are_those_of_nvtx_where_there_is_cuda(monkeypatch):
    told = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", told.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: told.append("end"))
    with pytest.raises(KeyError), named_range("outer"):
        raise KeyError
    assert told == ["outer", "end"]
