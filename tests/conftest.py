"""One torch thread a process, whoever starts the tests."""

import torch

torch.set_num_threads(1)
