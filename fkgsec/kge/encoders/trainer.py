"""Local training of clients with an encoder, one client after the other: alone or in a federation, the bits are the same.

    trainer = EncoderTrainer(stack, options)
    losses = trainer.train_round(1, [0, 2])          # rows in the stack move, and each client's network
    trainer.encoded(0, stack rows, trainer.local())  # the tables client 0 predicts with

It replaces `fkgsec.kge.local.training.LocalTrainer`, which trains models without an encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from fkgsec.adam import Adam, load_packed_state, packed_state
from fkgsec.federation import packing
from fkgsec.federation.recipes import Table
from fkgsec.kge.encoders.client import ClientEncoder, Rows
from fkgsec.kge.local.rule import LocalRule
from fkgsec.kge.local.stack import ClientStack
from fkgsec.kge.local.training import TABLES, TrainingSubset
from fkgsec.kge.models import ENCODERS, ClientTables
from fkgsec.kge.options import KgeOptions
from fkgsec.threads import one_thread

LOCAL = "local"
NETWORK: Table = "network"
"""Table of network parameters, one row per client. A recipe may share it: clients then average their networks."""
SERVER_KEY = -2  # key of the server's initial network; no client has it


class EncoderTrainer:
    """The clients' encoders with the Adam that trains each with its rows.

    Args:
        stack: the input rows of all clients, which are shared.
        options: of the federation.

    Attributes:
        rule: the base rule, which adds nothing: `KgeOptions` rejects algorithms with a rule for these models.
    """

    def __init__(self, stack: ClientStack, options: KgeOptions) -> None:
        self.rule = LocalRule(options)
        self._stack, self._options = stack, options
        self._encoders: list[ClientEncoder] = [
            ENCODERS[options.model].make(graph, graph.train, options, key)
            for graph, key in zip(stack.graphs, stack.keys, strict=True)
        ]
        # Rows as a client trains them, apart from those in the stack, which received rows replace.
        self._rows = [
            {table: stack.rows(table, place).detach().clone().requires_grad_() for table in TABLES}
            for place in range(len(stack.graphs))
        ]
        self._last_round = [0] * len(stack.graphs)
        self._reset()

    def _reset(self) -> None:
        self._adams = [
            Adam(
                [*rows.values(), *encoder.network.parameters()],
                lr=self._options.learning_rate,
                weight_decay=encoder.weight_decay,
            )
            for rows, encoder in zip(self._rows, self._encoders, strict=True)
        ]

    def train_on(self, client: int, subset: TrainingSubset) -> None:
        """Replace a client's training triples from now on.

        Args:
            client: place in the stack.
            subset: triples and the rows of them to train on.
        """
        graph, key = self._stack.graphs[client], self._stack.keys[client]
        triples = subset.triples[subset.rows]
        # The encoder's graph consists of the training triples, so it is rebuilt from the new ones.
        self._encoders[client] = ENCODERS[self._options.model].make(graph, triples, self._options, key)
        self._reset()

    def receive(self, table: Table, client: int, rows: Tensor, *, first: bool = False) -> None:
        """Do nothing: a client takes received rows over when it next trains, see `_takes_over`.

        Args:
            table, client, rows, first: as in `LocalTrainer.receive`.
        """

    def begin_round(self) -> None:
        """Reset Adam unless the options keep it: shared rows have changed since its last step."""
        if not self._options.keeps_optimizer:
            self._reset()

    def num_steps(self, clients: Sequence[int]) -> int:
        """Count the steps of one round, over clients one after the other.

        Args:
            clients: places in the stack.
        """
        return sum(self._encoders[client].num_steps for client in clients)

    def train_round(
        self, round: int, clients: Sequence[int], on_step: Callable[[], None] = lambda: None
    ) -> dict[int, float]:
        """Train one round.

        Args:
            clients: places in the stack.
            on_step: called after every step.

        Returns:
            Mean loss of each client.

        Raises:
            TrainingError: a loss is not finite.
        """
        with one_thread():
            return {client: self._train(round, client, on_step) for client in clients}

    def _train(self, round: int, client: int, on_step: Callable[[], None]) -> float:
        rows, adam = self._rows[client], self._adams[client]
        if self._takes_over(client, round):
            self._copy(self._stack_rows(client), rows)

        def step() -> None:
            """Update rows and network, and clear gradients."""
            adam.step()
            adam.zero_grad()

        with torch.enable_grad():
            loss = self._encoders[client].train(rows, step, round, on_step)
        self._last_round[client] = round
        self._copy(rows, self._stack_rows(client))
        return loss

    def _takes_over(self, client: int, round: int) -> bool:
        """Return True if the client trains from rows received since its last round, False if from its own."""
        if self._options.trains_from in (None, "received") or not self._last_round[client]:
            return True
        # NoGE's code writes received rows into the model when it evaluates, so a client takes over in those rounds
        # alone.
        checks = range(self._last_round[client], round)
        return self._options.trains_from == "checks" and any(check % self._options.eval_every == 0 for check in checks)

    def _stack_rows(self, client: int) -> dict[Table, Tensor]:
        return {table: self._stack.rows(table, client).detach() for table in TABLES}

    @torch.no_grad()
    def _copy(self, source: Rows, target: Rows) -> None:
        for table in TABLES:
            target[table].copy_(source[table])

    def fit_decoders(self) -> None:
        """Train the decoders on each client's current rows, before models are evaluated."""
        with one_thread():
            for client, encoder in enumerate(self._encoders):
                encoder.fit_decoder(self._stack_rows(client), self._last_round[client])

    def encoded(self, client: int, rows: Rows, state: Mapping[str, Tensor] | None) -> ClientTables:
        """Compute the tables that a client predicts with from input rows.

        Args:
            client: place in the stack.
            rows: input rows.
            state: state of all networks, from `local`; None for the current one.
        """
        encoder = self._encoders[client]
        # A snapshot has the networks of all clients under one prefix each.
        weights = encoder.network.state_dict() if state is None else packing.below(f"{LOCAL}.{client}.", state)
        with one_thread():
            return encoder.encode(rows, weights)

    def network(self, client: int) -> Tensor:
        """Return the client's network as one row `[1, P]`: parameters and running averages, without its graph.

        Args:
            client: place in the stack.
        """
        return _row(self._encoders[client])

    @torch.no_grad()
    def load_network(self, client: int, row: Tensor) -> None:
        """Load a row from `network`, or a mean of such rows.

        Args:
            client: place in the stack.
            row: float `[1, P]`.
        """
        values = row.flatten()
        for tensor in _numbers(self._encoders[client]):
            tensor.copy_(values[: tensor.numel()].view_as(tensor))
            values = values[tensor.numel() :]

    def first_network(self) -> Tensor:
        """Return the server's initial network, `[1, P]`: the shapes of a client's, from a separate draw."""
        graph = self._stack.graphs[0]
        return _row(ENCODERS[self._options.model].make(graph, graph.train, self._options, SERVER_KEY))

    def local(self) -> dict[str, Tensor]:
        """Copy the networks by name: the part of a client's model outside its rows."""
        return {
            f"{LOCAL}.{client}.{name}": tensor.detach().clone()
            for client, encoder in enumerate(self._encoders)
            for name, tensor in encoder.network.state_dict().items()
        }

    def restore_local(self, tensors: Mapping[str, Tensor]) -> None:
        """Load networks that `local` copied."""
        for client, encoder in enumerate(self._encoders):
            encoder.network.load_state_dict(packing.below(f"{LOCAL}.{client}.", tensors))

    def tensors(self) -> dict[str, Tensor]:
        """Return the state that a checkpoint between rounds needs besides rows and networks, by name."""
        tree: dict[str, packing.Tree | Tensor] = {"last_round": torch.tensor(self._last_round)}
        if self._options.trains_from not in (None, "received"):
            # Only then do a client's own rows differ from those in the stack.
            tree["rows"] = {str(client): dict(rows) for client, rows in enumerate(self._rows)}
        for client, adam in enumerate(self._adams if self._options.keeps_optimizer else []):
            tree[f"adam.{client}"] = packed_state(adam)
        return packing.pack(tree)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load the state that `tensors` returned."""
        self._last_round = tensors["last_round"].tolist()
        for client, rows in enumerate(self._rows):
            if client_rows := packing.below(f"rows.{client}.", tensors):
                self._copy(client_rows, rows)
        for client, adam in enumerate(self._adams):
            load_packed_state(adam, packing.below(f"adam.{client}.", tensors))


def _numbers(encoder: ClientEncoder) -> list[Tensor]:
    """List the tensors of a network that are averaged, in the order of its state dict."""
    return [tensor for tensor in encoder.network.state_dict().values() if tensor.is_floating_point()]


def _row(encoder: ClientEncoder) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in _numbers(encoder)])[None].clone()
