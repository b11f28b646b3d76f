"""Where batches come from: photos through the loader, or views of a frozen trunk that were cached once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from fewtags.labels import Batch, LabelMatrix

