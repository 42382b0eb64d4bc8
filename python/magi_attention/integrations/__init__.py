# SPDX-License-Identifier: Apache-2.0
"""Adapters for other packages; each is imported by itself and imports its package: transformers,
trainer, megatron; packed is for models of one's own and imports PyTorch alone.

Every adapter makes a mask of a batch (_mask_spec), a plan of it for the model's heads
(_model_plans), shares the rows out (_packed_batch, _megatron_batch) and gives the plan to the
model's attention (_bound). docs/integrations.md has an example of each.
"""
