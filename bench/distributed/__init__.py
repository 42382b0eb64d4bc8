# SPDX-License-Identifier: Apache-2.0
"""Parts of bench/dist_attention.py."""
