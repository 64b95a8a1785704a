"""Sums over groups that are told apart by id: any order, any sizes, any number of replicas."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dapolab.errors import ConfigError


@dataclass(frozen=True)
class Groups:
    """The partition of N responses by id. Built once per batch, used by every sum."""

    index_N: Tensor
    """Number of each response's group, 0 to n − 1."""
    n: int

    @classmethod
    def by_id(cls, ids: Tensor) -> "Groups":
        """Partition by equal ids (never by position: field cases B20, B26).

        Raises
        ------
        ConfigError
            If the ids are not one integer a response.
        """
        if ids.dim() != 1 or ids.is_floating_point():
            raise ConfigError(f"group ids must be one integer a response, not {tuple(ids.shape)}")
        found, index = torch.unique(ids, return_inverse=True)
        return cls(index_N=index, n=found.numel())

    def sum(self, values: Tensor) -> Tensor:
        """Sum (..., N) to one number a group, (..., n)."""
        out = values.new_zeros((*values.shape[:-1], self.n))
        return out.index_add(-1, self.index_N, values)

    def spread_back(self, values: Tensor) -> Tensor:
        """Give each response the number of its group: (..., n) to (..., N)."""
        return values[..., self.index_N]

    def total(self, values: Tensor) -> Tensor:
        """Return the group's sum at each of its responses; (..., N)."""
        return self.spread_back(self.sum(values))

    def largest(self, values: Tensor) -> Tensor:
        """Return the group's maximum at each of its responses; (..., N)."""
        index = self.index_N.expand(values.shape)
        out = values.new_full((*values.shape[:-1], self.n), -torch.inf)
        return self.spread_back(out.scatter_reduce(-1, index, values, "amax"))
