# SPDX-License-Identifier: Apache-2.0
"""Adapters to other libraries; each is imported by itself and imports its library."""
