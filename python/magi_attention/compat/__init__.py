# SPDX-License-Identifier: Apache-2.0
"""Parts of MagiAttention that plans do not use, for callers who bring jobs and costs of their own;
they are exported by the original's modules. The planner is the library's: src/plan.
"""
