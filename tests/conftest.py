"""What every test process needs before torch computes anything."""

import os

# Some virtual machines advertise AMX and then refuse its tiles, after which every oneDNN kernel fails.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import torch

torch.set_num_threads(1)
