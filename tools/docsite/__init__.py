# SPDX-License-Identifier: Apache-2.0
"""The docs site: what tools/docs_site builds and checks."""
