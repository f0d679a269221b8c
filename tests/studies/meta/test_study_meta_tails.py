"""Resamples without pairs of copies."""

from __future__ import annotations

import numpy as np
import pytest
