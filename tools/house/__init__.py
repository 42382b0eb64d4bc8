# SPDX-License-Identifier: Apache-2.0
"""The rules that tools/lint checks."""
