# SPDX-License-Identifier: Apache-2.0
from magi_attention.compat.collectives import *
