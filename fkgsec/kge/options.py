"""The options and the result of a federation of knowledge graphs.

    options = KgeOptions(algorithm="feds", model="rotate", dim=64, rounds=20, settings={"sparsity": 0.3})
    options.kge_model()                            # the model whose rows are shared
    result = run_federation(graph, options)
    (1 / result.test_ranks[0]).mean()              # the first client's test MRR
    result.tables[0].entities                      # its entity rows, `[n, W]`

Options are frozen, and checked when made. What every task has is `fkgsec.federation.options.RunOptions`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fkgsec.data.graph import FederatedGraph
from fkgsec.errors import RunError, SpecError
from fkgsec.estimate import Estimate
from fkgsec.federation import packing
from fkgsec.federation.options import RunOptions
from fkgsec.federation.recipes import RECIPES, algorithms_of
from fkgsec.federation.result import RunResult
from fkgsec.kge.models import ENCODERS, MODELS, MOST, ClientTables, KgeModel, ModelName
from fkgsec.kge.ranking import Sides, sampled_mrr, utility
from fkgsec.kge.settings import KgeSettings

NegativeScope = Literal["own", "all", "published"]
RankScope = Literal["own", "all"]
NegativeSides = Literal["tail", "both", "each"]
TrainsFrom = Literal["received", "checks", "own"]
Draws = Literal["numpy", "philox"]
TripleWeights = Literal["uniform", "frequency"]
Redraw = Literal["epoch", "never"]
EntityRange = Literal["dim", "width"]
BestRound = Literal["federation", "client"]
TRAINING = {"triple_weights": "uniform", "redraw": "epoch", "entity_range": "dim", "best_round": "federation"}
STORED_TABLES = ("tables", "trained", "private", "encoded", "trained_encoded")
STORED_RANKS = ("test_ranks", "shared_test_ranks", "valid_ranks")
NUM_NEGATIVES = 256
ENCODER_SETTINGS = ("dropout", "label_smoothing", "decoder_epochs", "decoder_negatives")


class KgeOptions(RunOptions["KgeResult"], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of knowledge-graph embedding. Defaults, those of `RunOptions` too, are of fedr.txt appendix B where it names them.

    Attributes (beside those of `RunOptions`):
        model, dim, gamma, init_epsilon: the scoring function, see `KgeModel`.
        num_negatives: negatives of each positive triple.
        temperature: of the self-adversarial weights of negatives; 0 weighs all alike. None takes the algorithm's own, which
            `sampling_temperature` says: 1, or 0 for `fedlu`, which has no such weights and refuses any other value.
        negative_sides: corrupt tails only (fedr.txt); "both", tails and heads in alternate steps; or "each", every batch's heads
            and then its tails, a step each, so that an epoch has twice the steps (FedLU's code).
        eval_sides: rank tails only (fedr.txt) or both.
        eval_sample: of each client at most so many validation triples are ranked, drawn once for the run; None: all.
        eval_candidates: they are ranked among so many drawn entities; None: among all. Neither touches test figures. What
            validation then estimates, and with what error, says `fkgsec.kge.ranking.sampled_mrr`.
        negative_scope: the entities that replace a head or tail: "own", those of the client's train split (FedR's code);
            "all", those of the federation (FedE's code); "published", the global IDs 0..n-1, where n counts the client's own
            (the FedE beside FedR's code takes local counts for global IDs, so it never draws a fifth of a client's entities).
        rank_scope: the entities that a test triple's answer competes with: the client's "own" (FedE's and FedR's codes), or
            "all" of the federation (the FedE beside FedR's code). With "own" a client exchanges its own entities alone, so that
            rows that only serve as negatives stay with it.
        draws: where a client's order of triples and its negatives come from: "numpy", one generator per epoch, or
            "philox", numbers by key and counter (`fkgsec.philox`), each of which can be drawn without the others. Figures of
            the two differ as those of two seeds do. First rows come from numpy either way.
        triple_weights: weights of positives in the loss of a batch: "uniform", or by "frequency", 1 / sqrt(count(h, r) +
            count(r, t)) over their sum (`fkgsec.kge.negatives.frequency_weights`; FedLU's code). The divergence between two
            models stays uniform.
        redraw: whether each "epoch" draws its batches and negatives, or "never", so that all epochs repeat those of the first
            (FedLU's code).
        entity_range: initial entity values are uniform in +-(gamma + init_epsilon) over "dim", or over the "width" of a row,
            which halves the range for RotatE and ComplEx (FedLU's code).
        best_round: validation keeps the best round of the "federation", or of each "client" (FedLU's code). With "client" the
            validation MRR of a round is that of the models kept so far. The transcript is of the last round that a client
            improved in, so adversaries, sampled validation and clients in other processes are refused.
            None of these four takes the value of the algorithm's settings (see `variant`), else the first.
        dropout, label_smoothing, decoder_epochs, decoder_negatives: of models with an encoder, those of `encoder_settings`;
            None: the model's own. `dropout` is of queries (`noge`) or of attention and layers (`kb-gat`); the decoder's are
            epochs before each validation, and negatives of each triple.
        trains_from: of models with an encoder, the rows from which a client trains on: those "received"; those received in
            rounds with a validation ("checks": NoGE's code, whose evaluation writes them into the model), else its own; or
            always its "own" (fedr.txt 4.4: what is aggregated does not influence local training). Models are judged with the
            rows received whatever it is. None: "received".

    Differs: FedE's code sends every client all entity rows, though each ranks its own entities.

    Differs: FedLU's code (nju-websoft/FedLU) has the other values of its settings (`fkgsec.algorithms.fedlu`), and "each" for
    `negative_sides`; the specs of its tables set them where the paper is silent. Of what else it does there is no option: it
    shuffles the batches of heads and of tails apart, validates in rounds 1, 6, 11 and so on, keeps a client's best round only
    where a mean over clients improves, and begins each direction of distillation when validation stalls.
    """

    task: ClassVar[str] = "kge"

    model: ModelName = "transe"
    dim: int = 128
    gamma: float = 10.0
    init_epsilon: float = 2.0
    num_negatives: int = NUM_NEGATIVES
    temperature: float | None = None
    negative_sides: NegativeSides = "both"
    eval_sides: Sides = "both"
    eval_sample: int | None = None
    eval_candidates: int | None = None
    negative_scope: NegativeScope = "own"
    rank_scope: RankScope = "own"
    draws: Draws = "numpy"
    triple_weights: TripleWeights | None = None
    redraw: Redraw | None = None
    entity_range: EntityRange | None = None
    best_round: BestRound | None = None
    dropout: float | None = None
    label_smoothing: float | None = None
    decoder_epochs: int | None = None
    decoder_negatives: int | None = None
    trains_from: TrainsFrom | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_encoder()
        if self.num_negatives < 1:
            raise SpecError(f"num_negatives must be at least 1; got {self.num_negatives}")
        for name in ("eval_sample", "eval_candidates"):
            value = getattr(self, name)
            if value is not None and value < 2:
                raise SpecError(f"{name} must be at least 2; got {value}")
        model = self.kge_model()
        self.kge_settings.check(model.entity_width)
        if not model.relation_width and "relations" in RECIPES[self.algorithm].shared:
            raise SpecError(f"model {self.model} has no numbers of relations, which {self.algorithm} shares")
        self._check_temperature()
        self._check_best_round()
        self.private_model()

    def _check_best_round(self) -> None:
        if not self.keeps_by_client:
            return
        if RECIPES[self.algorithm].pooled:
            raise SpecError(f"best_round must be federation for {self.algorithm}, which has one model; got 'client'")
        if self.samples_validation:
            raise SpecError("eval_sample and eval_candidates do not apply with best_round=client; leave them out")

    def _check_temperature(self) -> None:
        given = self.temperature
        if given is None:
            return
        if not (math.isfinite(given) and given >= 0):
            raise SpecError(f"temperature must be at least 0; got {given}")
        if given > MOST:
            raise SpecError(f"temperature must be at most {MOST:,.0f}; got {given:g}")
        if given != self.sampling_temperature:
            raise SpecError(
                f"temperature does not apply to {self.algorithm} with these settings and {self.model}, which weighs negatives "
                f"alike; leave it out or give 0; got {given:g}"
            )

    def _check_encoder(self) -> None:
        """Raise `SpecError` for options of models with an encoder where the model has none, and for what does not go with one."""
        own = self.encoder_settings
        for name in (*ENCODER_SETTINGS, "trains_from"):
            value = getattr(self, name)
            if value is None:
                continue
            if name not in (*own, *(["trains_from"] if self.has_encoder else [])):
                raise SpecError(f"{name} does not apply to the model {self.model}; leave it out")
            if name in ("dropout", "label_smoothing") and not 0 <= value < 1:
                raise SpecError(f"{name} must be at least 0 and below 1; got {value}")
            if name in ("decoder_epochs", "decoder_negatives") and value < 1:
                raise SpecError(f"{name} must be at least 1; got {value}")
        if not self.has_encoder:
            return
        ENCODERS[self.model].check(self.dim)
        fitting = [name for name, one in algorithms_of("kge").items() if one.local is None and one.private == "none"]
        if self.algorithm not in fitting:
            raise SpecError(
                f"model {self.model} has a network of the client's own, which the local training of {self.algorithm} does not "
                f"know; it goes with {', '.join(fitting)}"
            )
        if self.num_negatives != NUM_NEGATIVES and not self._samples_negatives:
            raise SpecError(f"num_negatives does not apply to the model {self.model}; leave it out")
        for name, default in TRAINING.items():
            if self.training(name) != default:
                raise SpecError(f"{name} must be {default} for the model {self.model}; got {self.training(name)!r}")
        if self.draws != "numpy":
            raise SpecError(f"draws must be numpy for the model {self.model}; got {self.draws!r}")
        if self.negative_scope == "published":
            raise SpecError(f"negative_scope must be one of own, all for the model {self.model}; got 'published'")

    def training(self, name: str) -> str:
        """The value of one of `TRAINING`: as given, else that of the algorithm's settings, else the default."""
        return getattr(self, name) or self.kge_settings.training.get(name, TRAINING[name])

    @property
    def keeps_by_client(self) -> bool:
        return self.training("best_round") == "client"

    @property
    def keeps_all_entities(self) -> bool:
        """Whether a client keeps a row for every entity of the federation, and not for its own alone."""
        return (self.negative_scope, self.rank_scope) != ("own", "own")

    @property
    def samples_validation(self) -> bool:
        """Whether validation is an estimate from a draw of triples or of candidates."""
        return self.eval_sample is not None or self.eval_candidates is not None

    @property
    def has_encoder(self) -> bool:
        """Whether rows pass through a network of the client's own before they are scored."""
        return self.model not in MODELS and self.model in ENCODERS

    @property
    def _samples_negatives(self) -> bool:
        return not self.has_encoder or ENCODERS[self.model].samples_negatives

    @property
    def encoder_settings(self) -> Mapping[str, float | int]:
        """The options that the model's encoder has, with its own values; empty for a model without one."""
        return ENCODERS[self.model].settings if self.has_encoder else {}

    def encoder_setting(self, name: str) -> Any:
        """The value of one of `encoder_settings`: as given, or the model's own."""
        given = getattr(self, name)
        return self.encoder_settings[name] if given is None else given

    @property
    def kge_settings(self) -> KgeSettings:
        """What the algorithm's settings say of the model; nothing, where they are settings of no model."""
        return self.settings if isinstance(self.settings, KgeSettings) else KgeSettings()

    def identity(self) -> dict[str, Any]:
        """As ever; what once stood there for all algorithms stays, and `init_epsilon` goes by its old name.

        Runs from before there were `draws` drew by numpy, which goes unsaid. Both scopes were one option, `entity_scope`.
        """
        kept = {"temperature": 1.0, "tau": 0.2} | super().identity()
        if kept["draws"] == "numpy":
            del kept["draws"]
        scopes = kept.pop("negative_scope"), kept.pop("rank_scope")
        alike = scopes in (("own", "own"), ("all", "all"), ("published", "all"))
        kept["entity_scope"] = scopes[0] if alike else scopes
        return {"epsilon" if name == "init_epsilon" else name: value for name, value in kept.items()}

    def kge_model(self) -> KgeModel:
        """The model whose rows are shared."""
        return self._model(self.kge_settings.shared_dim(self.dim))

    def decoder(self, encoded: ClientTables) -> KgeModel:
        """The model that scores rows as a client's encoder made them."""
        return ENCODERS[self.model].decoder(self.kge_model(), encoded)

    def private_model(self) -> KgeModel:
        """The model that a client keeps to itself, in algorithms that have one."""
        return self._model(self.dim)

    def _model(self, dim: int) -> KgeModel:
        halved = self.training("entity_range") == "width"
        return KgeModel(self.model, dim, self.gamma, self.init_epsilon, entities_by_width=halved)

    @property
    def sampling_temperature(self) -> float:
        """Of the weights of negatives, in training and wherever its loss is computed again; models with an encoder have none."""
        if self.has_encoder and not self._samples_negatives:
            return 0.0
        return self.kge_settings.sampling_temperature(self.temperature, self.model)


@dataclass(frozen=True, repr=False, kw_only=True)
class KgeResult(RunResult):
    """A finished run, at its best validation.

    Attributes (beside those of `RunResult`):
        tables: each client's embeddings after the broadcast of that round.
        trained: each client's embeddings before it (what a colluder would hand over): as its own training left them, or for a
            client that sat the round out as the last broadcast did.
        test_ranks: ranks of each client's test triples, float64 `[n, sides]`, by `trained` or by `tables`, as the recipe's
            models are judged.
        private: each client's embeddings of the model that it keeps to itself, where the recipe has one; `test_ranks` are
            its ranks, and `shared_test_ranks` those of the shared model.
        valid_ranks: of the drawn validation triples by the kept models, where validation is sampled; see `validation`.
        encoded, trained_encoded: what each client's encoder makes of `tables` and of `trained`, where the model has one.
    """

    graph: FederatedGraph
    options: KgeOptions
    tables: list[ClientTables]
    trained: list[ClientTables]
    test_ranks: list[np.ndarray]
    private: list[ClientTables] = field(default_factory=list)
    shared_test_ranks: list[np.ndarray] = field(default_factory=list)
    valid_ranks: list[np.ndarray] = field(default_factory=list)
    encoded: list[ClientTables] = field(default_factory=list)
    trained_encoded: list[ClientTables] = field(default_factory=list)

    def predictor(self, kind: Literal["tables", "trained", "private"], place: int) -> tuple[KgeModel, ClientTables]:
        """The model that a client predicts with, and its rows: those of this kind, or what its encoder makes of them.

        Raises `RunError` for tables that were trained elsewhere with an encoder, which is not at hand.
        """
        if kind == "private":
            return self.options.private_model(), self.private[place]
        if not self.options.has_encoder:
            return self.options.kge_model(), getattr(self, kind)[place]
        if not self.encoded:
            raise RunError(
                f"{self.options.model}: input rows alone say nothing of what a client predicts; its network is missing"
            )
        encoded = self.encoded[place] if kind == "tables" else self.trained_encoded[place]
        return self.options.decoder(encoded), encoded

    @property
    def validation(self) -> Estimate | None:
        """What the kept models' sampled validation estimates, and how; None where validation is full."""
        if not self.valid_ranks:
            return None
        sizes = [len(client.valid) for client in self.graph.clients]
        return sampled_mrr(self.valid_ranks, sizes, self.options.eval_candidates)

    def headline(self) -> str:
        """Algorithm, model and dimension."""
        return f"{self.options.algorithm}, {self.options.model}, dimension {self.options.dim}"

    def reached(self) -> list[str]:
        """Test MRR and Hits@k with their intervals; empty without test triples."""
        if not any(len(ranks) for ranks in self.test_ranks):
            return []
        sampled = self.validation
        lines = [f"validation mrr: {sampled} ({sampled.method})"] if sampled else []
        return [*lines, *(f"test {name}: {figure}" for name, figure in self.utility()[0].items())]

    def utility(self) -> tuple[dict[str, Estimate], dict[str, dict[str, Estimate]]]:
        """Filtered MRR and Hits@k on test triples: over all clients, where each counts by its triples, and of each."""
        seed, clients = self.options.seed, zip(self.graph.clients, self.test_ranks, strict=bool(self.test_ranks))
        by_client = {client.name: utility(ranks, seed) for client, ranks in clients}
        return utility(np.concatenate(self.test_ranks), seed) if self.test_ranks else {}, by_client

    def outcome_tree(self) -> dict[str, packing.Tree]:
        """Embeddings and ranks, by place."""
        tree: dict[str, packing.Tree] = {
            kind: {
                str(place): {"entities": one.entities, "relations": one.relations, "decoder": one.decoder}
                for place, one in enumerate(getattr(self, kind))
            }
            for kind in STORED_TABLES
        }
        for kind in STORED_RANKS:
            tree[kind] = {str(place): torch.from_numpy(ranks) for place, ranks in enumerate(getattr(self, kind))}
        return tree

    @classmethod
    def read_outcome(cls, tensors: Mapping[str, Tensor], num_clients: int) -> dict[str, Any]:
        """Undo `outcome_tree`, packed."""

        def tables(kind: str) -> list[ClientTables]:
            found = packing.below(f"{kind}.", tensors)
            return [
                ClientTables(
                    found[f"{place}.entities"],
                    found[f"{place}.relations"],
                    packing.below(f"{place}.decoder.", found),
                )
                for place in range(num_clients)
                if f"{place}.entities" in found and f"{place}.relations" in found
            ]

        def ranks(kind: str) -> list[np.ndarray]:
            names = [f"{kind}.{place}" for place in range(num_clients)]
            return [tensors[name].numpy() for name in names if name in tensors]

        return {kind: tables(kind) for kind in STORED_TABLES} | {kind: ranks(kind) for kind in STORED_RANKS}
