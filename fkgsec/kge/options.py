"""Options of a federation of knowledge graphs: scoring function, training and evaluation.

    options = KgeOptions(algorithm="feds", model="rotate", dim=64, rounds=20, settings={"sparsity": 0.3})
    options.kge_model()                            # the model whose rows are shared

Frozen, and validated on construction. `fkgsec.federation.options.RunOptions` has the options of every task.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from msgspec import Meta

from fkgsec.errors import SpecError
from fkgsec.federation.options import RunOptions
from fkgsec.federation.recipes import RECIPES, algorithms_of
from fkgsec.kge.models import ENCODERS, MODELS, MOST, KgeModel, ModelName, Sides
from fkgsec.kge.settings import KgeSettings

if TYPE_CHECKING:
    from fkgsec.kge.models import ClientTables
    from fkgsec.kge.result import KgeResult  # noqa: F401 (the base below names it)

NegativeScope = Literal["own", "all", "published"]
RankScope = Literal["own", "all"]
NegativeSides = Literal["tail", "both", "each"]
TrainsFrom = Literal["received", "checks", "own"]
TripleWeights = Literal["uniform", "frequency"]
Redraw = Literal["epoch", "never"]
EntityRange = Literal["dim", "width"]
BestRound = Literal["federation", "client"]
TRAINING = {"triple_weights": "uniform", "redraw": "epoch", "entity_range": "dim", "best_round": "federation"}
NUM_NEGATIVES = 256
ENCODER_SETTINGS = ("dropout", "label_smoothing", "decoder_epochs", "decoder_negatives")


class KgeOptions(RunOptions["KgeResult"], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of knowledge-graph embedding. Defaults, those of `RunOptions` too, are of fedr.txt appendix B where it names them.

    Attributes (in addition to those of `RunOptions`):
        model, dim, gamma, init_epsilon: the scoring function, see `KgeModel`.
        num_negatives: negatives of each positive triple.
        temperature: of the self-adversarial weights of negatives; 0 gives equal weights. None takes the default of the
            algorithm, see `sampling_temperature`: 1, or 0 for `fedlu`, which has no such weights and rejects other values.
        negative_sides: "tail" corrupts tails only (fedr.txt). "both" alternates tails and heads between steps. "each" corrupts
            the heads of every batch and then its tails, so that an epoch has twice the steps (FedLU's code).
        eval_sides: rank tails only (fedr.txt) or both.
        eval_sample: maximum number of validation triples per client, drawn once for the run; None: all.
        eval_candidates: number of drawn entities they are ranked among; None: all. Neither option changes test figures.
            `fkgsec.kge.ranking.sampled_mrr` estimates the validation MRR and its error.
        negative_scope: entities that replace a head or tail. "own": those of the client's train split (FedR's code). "all":
            those of the federation (FedE's code). "published": the global IDs 0..n-1, where n counts the client's entities. The
            FedE beside FedR's code takes local counts for global IDs, so it never draws a fifth of a client's entities.
        rank_scope: entities that a test triple's answer competes with: the client's "own" (code of FedE and FedR), or "all" of
            the federation (the FedE beside FedR's code). With "own" a client exchanges its own entities alone; rows that only
            serve as negatives stay with it.
        triple_weights: weights of positives in the loss of a batch: "uniform", or by "frequency", 1 / sqrt(count(h, r) +
            count(r, t)) over their sum (`fkgsec.kge.negatives.frequency_weights`; FedLU's code). The divergence between two
            models stays uniform.
        redraw: "epoch" draws batches and negatives in every epoch; "never" repeats those of the first (FedLU's code).
        entity_range: initial entity values are uniform in +-(gamma + init_epsilon) over "dim", or over the "width" of a row,
            which halves the range for RotatE and ComplEx (FedLU's code).
        best_round: validation selects the best round of the "federation", or of each "client" (FedLU's code). With "client" the
            validation MRR of a round is that of the best models so far. The transcript is of the last round in which a client
            improved, so adversaries, sampled validation and clients in other processes are rejected.
            For these four, None takes the value of the algorithm's settings (see `variant`), else the first value.
        dropout, label_smoothing, decoder_epochs, decoder_negatives: options of models with an encoder, see `encoder_settings`;
            None: the model's default. `dropout` applies to queries (`noge`) or to attention and layers (`kb-gat`). The decoder's
            options are epochs before each validation, and negatives per triple.
        trains_from: for models with an encoder, the rows from which a client trains. "received": those of the last broadcast.
            "checks": those received in rounds with a validation, else its own (NoGE's evaluation writes received rows into the
            model). "own": always its own (fedr.txt 4.4: aggregates do not influence local training). Models are evaluated with
            received rows in all cases. None: "received".

    Differs: FedE's code sends every client all entity rows, though each ranks its own entities.

    Differs: FedLU's code (nju-websoft/FedLU) has the other values of its settings (`fkgsec.algorithms.fedlu`), and "each" for
    `negative_sides`; the specs of its tables set them where the paper is silent. Other differences have no option. FedLU's code
    shuffles the batches of heads and tails separately and validates in rounds 1, 6, 11 and so on. It updates a client's best
    round only if a mean over clients improves, and begins each direction of distillation when validation stalls.
    """

    task: ClassVar[str] = "kge"

    model: Annotated[
        ModelName, Meta(description="scoring function, encoder, or convolution (or a convolution's dotted name)")
    ] = "transe"
    dim: Annotated[int, Meta(description="embedding dimension")] = 128
    gamma: Annotated[float, Meta(description="margin of distance-based models")] = 10.0
    init_epsilon: Annotated[float, Meta(description="initial values are uniform in +-(gamma + init_epsilon) / dim")] = (
        2.0
    )
    num_negatives: Annotated[int, Meta(description="negatives per positive triple")] = NUM_NEGATIVES
    temperature: Annotated[
        float | None,
        Meta(description="temperature of self-adversarial weights; 0: equal weights (default: 1; fedlu: 0)"),
    ] = None
    negative_sides: Annotated[
        NegativeSides,
        Meta(description="sides to corrupt: head, tail, both in turn, or each batch on both (twice the steps)"),
    ] = "both"
    eval_sides: Annotated[Sides, Meta(description="sides to rank in evaluation")] = "both"
    eval_sample: Annotated[
        int | None,
        Meta(description="validation triples per client, drawn once (default: all); test triples are never sampled"),
    ] = None
    eval_candidates: Annotated[
        int | None, Meta(description="sampled entities among which validation triples are ranked (default: all)")
    ] = None
    negative_scope: Annotated[NegativeScope, Meta(description="entities from which negatives are drawn")] = "own"
    rank_scope: Annotated[RankScope, Meta(description="entities among which test triples are ranked")] = "own"
    triple_weights: Annotated[
        TripleWeights | None, Meta(description="weights of positives: uniform, or lower for frequent pairs")
    ] = None
    redraw: Annotated[Redraw | None, Meta(description="draw batches and negatives in each epoch, or only once")] = None
    entity_range: Annotated[
        EntityRange | None,
        Meta(description="divisor of the initial range of entity values: dim, or the width of a row"),
    ] = None
    best_round: Annotated[BestRound | None, Meta(description="best round: of the federation, or of each client")] = None
    dropout: Annotated[float | None, Meta(description="dropout rate in training (noge: 0.5, kb-gat: 0.3)")] = None
    label_smoothing: Annotated[float | None, Meta(description="label smoothing of noge (0.1)")] = None
    decoder_epochs: Annotated[int | None, Meta(description="epochs of kb-gat's decoder before each validation (5)")] = (
        None
    )
    decoder_negatives: Annotated[int | None, Meta(description="negatives per triple in kb-gat's decoder (10)")] = None
    trains_from: Annotated[
        TrainsFrom | None,
        Meta(
            description="rows from which clients of noge and kb-gat train: received (default), received only in "
            "validation rounds (checks), or own"
        ),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_encoder()
        if self.num_negatives < 1:
            raise SpecError(f"num_negatives must be at least 1; got {self.num_negatives}")
        for name in ("eval_sample", "eval_candidates"):
            value = getattr(self, name)
            if value is not None and value < 2:
                raise SpecError(f"{name} must be at least 2; got {value}")
        # Constructing the model validates its dimension and margin.
        model = self.kge_model()
        self.kge_settings.check(model.entity_width)
        if not model.relation_width and "relations" in RECIPES[self.algorithm].shared:
            raise SpecError(f"model {self.model} has no relation embeddings, which {self.algorithm} shares")
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
        temperature = self.temperature
        if temperature is None:
            return
        if not (math.isfinite(temperature) and temperature >= 0):
            raise SpecError(f"temperature must be at least 0; got {temperature}")
        if temperature > MOST:
            raise SpecError(f"temperature must be at most {MOST:,.0f}; got {temperature:g}")
        # The algorithm may ignore the option, which must not go unnoticed.
        if temperature != self.sampling_temperature:
            raise SpecError(
                f"temperature does not apply to {self.algorithm} with these settings and {self.model}, which weighs negatives "
                f"equally; leave it out or give 0; got {temperature:g}"
            )

    def _check_encoder(self) -> None:
        """Raise `SpecError` for encoder options of a model without an encoder, and for options that an encoder does not
        support.
        """
        encoder_options = self.encoder_settings
        for name in (*ENCODER_SETTINGS, "trains_from"):
            value = getattr(self, name)
            if value is None:
                continue
            if name not in (*encoder_options, *(["trains_from"] if self.has_encoder else [])):
                raise SpecError(f"{name} does not apply to the model {self.model}; leave it out")
            if name in ("dropout", "label_smoothing") and not 0 <= value < 1:
                raise SpecError(f"{name} must be at least 0 and below 1; got {value}")
            if name in ("decoder_epochs", "decoder_negatives") and value < 1:
                raise SpecError(f"{name} must be at least 1; got {value}")
        if not self.has_encoder:
            return
        ENCODERS[self.model].check(self.dim)
        # A network's training is a loop of its own, which rules and private models do not hook into.
        fitting = [
            name for name, recipe in algorithms_of("kge").items() if recipe.local is None and recipe.private == "none"
        ]
        if self.algorithm not in fitting:
            raise SpecError(
                f"model {self.model} has a private network, which the local training of {self.algorithm} does not "
                f"support; use it with {', '.join(fitting)}"
            )
        if self.num_negatives != NUM_NEGATIVES and not self._samples_negatives:
            raise SpecError(f"num_negatives does not apply to the model {self.model}; leave it out")
        for name, default in TRAINING.items():
            if self.training(name) != default:
                raise SpecError(f"{name} must be {default} for the model {self.model}; got {self.training(name)!r}")
        if self.negative_scope == "published":
            raise SpecError(f"negative_scope must be one of own, all for the model {self.model}; got 'published'")

    def training(self, name: str) -> str:
        """Return the value of one of `TRAINING`: the option if set, else the algorithm's setting, else the default.

        Args:
            name: key of `TRAINING`.
        """
        return getattr(self, name) or self.kge_settings.training.get(name, TRAINING[name])

    @property
    def keeps_by_client(self) -> bool:
        """Return whether validation selects the best round of each client."""
        return self.training("best_round") == "client"

    @property
    def keeps_all_entities(self) -> bool:
        """Return whether a client has a row for every entity of the federation, not for its own alone."""
        return (self.negative_scope, self.rank_scope) != ("own", "own")

    @property
    def samples_validation(self) -> bool:
        """Return whether validation is estimated from a sample of triples or candidates."""
        return self.eval_sample is not None or self.eval_candidates is not None

    @property
    def has_encoder(self) -> bool:
        """Return whether rows pass through a network of the client before they are scored."""
        return self.model not in MODELS and self.model in ENCODERS

    @property
    def _samples_negatives(self) -> bool:
        return not self.has_encoder or ENCODERS[self.model].samples_negatives

    @property
    def encoder_settings(self) -> Mapping[str, float | int]:
        """Options of the model's encoder with their defaults; empty without an encoder."""
        return ENCODERS[self.model].settings if self.has_encoder else {}

    def encoder_setting(self, name: str) -> Any:
        """Return the value of one of `encoder_settings`: the option if set, else the model's default.

        Args:
            name: key of `encoder_settings`.
        """
        value = getattr(self, name)
        return self.encoder_settings[name] if value is None else value

    @property
    def kge_settings(self) -> KgeSettings:
        """The algorithm's settings if they concern the model, else the defaults."""
        return self.settings if isinstance(self.settings, KgeSettings) else KgeSettings()

    def identity(self) -> dict[str, Any]:
        """Return the base identity with the defaults that earlier runs recorded, and `init_epsilon` under its old name.

        Both scopes were one option, `entity_scope`.
        """
        defaults = {"temperature": 1.0, "tau": 0.2} | super().identity()
        # Keep the identities of runs from before the option was split in two.
        scopes = defaults.pop("negative_scope"), defaults.pop("rank_scope")
        alike = scopes in (("own", "own"), ("all", "all"), ("published", "all"))
        defaults["entity_scope"] = scopes[0] if alike else scopes
        return {"epsilon" if name == "init_epsilon" else name: value for name, value in defaults.items()}

    def kge_model(self) -> KgeModel:
        """Return the model whose rows are shared."""
        return self._model(self.kge_settings.shared_dim(self.dim))

    def decoder(self, encoded: ClientTables) -> KgeModel:
        """Return the model that scores encoded rows.

        Args:
            encoded: of one client.
        """
        return ENCODERS[self.model].decoder(self.kge_model(), encoded)

    def private_model(self) -> KgeModel:
        """Return the private model of a client, in algorithms that have one."""
        return self._model(self.dim)

    def _model(self, dim: int) -> KgeModel:
        halved = self.training("entity_range") == "width"
        return KgeModel(self.model, dim, self.gamma, self.init_epsilon, entities_by_width=halved)

    @property
    def sampling_temperature(self) -> float:
        """Temperature of the weights of negatives in the training loss; 0 for models that train without negatives."""
        if self.has_encoder and not self._samples_negatives:
            return 0.0
        return self.kge_settings.sampling_temperature(self.temperature, self.model)
