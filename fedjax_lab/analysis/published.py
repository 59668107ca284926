"""The accuracy tables of five papers: their numbers, and the runs that reproduce each cell.

published.csv has a row for every printed accuracy of Client2Vec (Guo et al., ICCV 2025), FedC2I
(arXiv:2410.03315), FedConcat (Diao et al., AAAI 2024), hFedF (Bartholet et al. 2024) and FedPick
(Zhu et al.). Tables of losses, seconds, gains and sizes of data sets are left out.

RULES map the facts of a row to the config file, overrides and measure of its run. A later rule
overrides an earlier one.
"""

import csv
import functools
from collections import Counter
from collections.abc import Iterable
from importlib import resources
from typing import Any, NamedTuple

from fedjax_lab.errors import BadInput, nearest


class Result(NamedTuple):
    """A printed accuracy, in percent."""

    paper: str
    table: str  # "1", "II"
    dataset: str
    model: str
    setting: str  # KEY=VALUE;KEY=VALUE
    method: str
    variant: str  # empty: the method as proposed
    column: str
    mean: float
    std: float | None  # None: not printed
    conflict: str  # a different number or remark elsewhere in the paper; empty: none


class Rule(NamedTuple):
    """Properties of all rows that have the facts of `when`; empty fields specify nothing."""

    when: str  # such as "table=2|13;dataset=svhn"; "|" separates alternatives
    settings: dict[str, str] = {}  # config values by dotted key; {fact} is replaced by its value
    config: str = ""  # a file in configs/
    method: str = ""  # the package's name of the method, if the table has another one
    way: str = ""  # of choosing a round, see metrics.pick_rounds
    measure: str = ""  # see runs.measures
    seeds: int = 0  # the number of seeds in the paper
    per_client: bool = False  # whether the std is over clients and seeds
    over: tuple[str, ...] = ()  # the number is the mean over these values of the fact `target`
    note: str = ""  # how the run differs from the paper, or what the paper does not state
    lacks: str = ""  # the reason why there is no run


class Spec(NamedTuple):
    """The specification of a run."""

    name: str  # the name of its folder
    config: str
    method: str
    settings: dict[str, str]


class Recipe(NamedTuple):
    """How to measure the number of a row."""

    specs: tuple[Spec, ...]  # the runs; if several, the number is their mean
    way: str
    measure: str
    seeds: int
    per_client: bool
    notes: tuple[str, ...]
    lacks: str  # the reason why it cannot be measured; empty if it can


# The numbers.


@functools.cache
def results() -> tuple[Result, ...]:
    """All printed accuracies, in the order of the papers' tables."""
    text = (
        resources.files("fedjax_lab.analysis").joinpath("published.csv").read_text(encoding="utf-8")
    )
    rows: Iterable[dict[str, Any]] = csv.DictReader(text.splitlines())
    return tuple(
        Result(
            **row | {"mean": float(row["mean"]), "std": float(row["std"]) if row["std"] else None}
        )
        for row in rows
    )


def tables() -> dict[tuple[str, str], tuple[Result, ...]]:
    """The rows of each table, by (paper, table)."""
    out: dict[tuple[str, str], tuple[Result, ...]] = {}
    for result in results():
        key = result.paper, result.table
        out[key] = (*out.get(key, ()), result)
    return out


def find(paper: str, table: str) -> tuple[Result, ...]:
    """The rows of a table, named "table1", "1" or "Table 1".

    Raises BadInput, which names the nearest paper or table, if there is none.
    """
    if paper not in RULES:
        raise BadInput(f"no paper {paper!r}; {nearest(paper, RULES)}")
    of_paper = {f"table{t}": rows for (p, t), rows in tables().items() if p == paper}
    wanted = "table" + table.lower().removeprefix("table").strip()
    for name, rows in of_paper.items():
        if name.lower() == wanted:
            return rows
    raise BadInput(f"{paper} has no accuracies in {table!r}; {nearest(table, of_paper)}")


# From a row to runs.


def facts(result: Result) -> dict[str, str]:
    """The facts of a row that rules refer to. `score` is the part of the column before a colon."""
    pairs = [pair.partition("=") for pair in result.setting.split(";") if pair]
    of_row = {key: value for key, _, value in pairs}
    for key in ("paper", "table", "dataset", "model", "method", "variant", "column"):
        of_row[key] = getattr(result, key)
    return of_row | {"score": result.column.partition(":")[0]}


def recipe(result: Result) -> Recipe:
    """How to measure a row, or the reason why it cannot be measured."""
    row_facts = facts(result)
    rules = [rule for rule in RULES[result.paper] if _fits(rule, row_facts)]
    over = _last(rules, "over")
    targets = [row_facts | {"target": target} for target in over] if over else [row_facts]
    lacks = _last(rules, "lacks")
    specs = () if lacks else tuple(_spec(result, target) for target in targets)
    return Recipe(
        specs=specs,
        way=_last(rules, "way"),
        measure=(_last(rules, "measure") or "").format(**row_facts),
        seeds=_last(rules, "seeds"),
        per_client=bool(_last(rules, "per_client")) and not over,
        notes=tuple(rule.note for rule in rules if rule.note),
        lacks=lacks,
    )


def _fits(rule, row_facts):
    pairs = [pair.partition("=") for pair in rule.when.split(";") if pair]
    return all(row_facts.get(key) in value.split("|") for key, _, value in pairs)


def _last(rules, field):
    values = [value for rule in rules if (value := getattr(rule, field))]
    return values[-1] if values else Rule._field_defaults[field]


def _spec(result, row_facts):
    rules = [rule for rule in RULES[result.paper] if _fits(rule, row_facts)]
    settings = {}
    for rule in rules:
        settings |= {key: value.format(**row_facts) for key, value in rule.settings.items()}
    name = "/".join([*_shared_parts(result, row_facts), _method(result)])
    return Spec(name, _last(rules, "config"), _last(rules, "method") or result.method, settings)


def cell_name(result: Result) -> str:
    """The unique name of a row in its table: DATASET/SETTING/METHOD(VARIANT)/COLUMN."""
    row_facts = {key: value for key, value in facts(result).items() if key != "target"}
    column = [result.column] if "column" in _varying(result.paper, result.table) else []
    return "/".join([*_shared_parts(result, row_facts), _method(result), *column])


def _method(result):
    return f"{result.method}({result.variant})" if result.variant else result.method


def _shared_parts(result, row_facts):
    """The data set (or the model, if there is one data set) and settings that vary in a table."""
    varying = _varying(result.paper, result.table)
    first = "dataset" if "dataset" in varying else "model"
    parts = [row_facts[first]] if first in varying else []
    named = [key for key in row_facts if key not in Result._fields and key != "score"]
    return parts + [f"{key}={row_facts[key]}" for key in named if key in varying or key == "target"]


@functools.cache
def _varying(paper, table):
    """The facts with different values in the rows of a table."""
    pairs = {pair for result in find(paper, table) for pair in facts(result).items()}
    counts = Counter(key for key, _ in pairs)
    return {key for key, count in counts.items() if count > 1}


# The rules of each paper.

_TWICE = {"method.encoder_rounds": "62", "method.classifier_rounds": "400"}
_OF_FEDCONCAT = "method=fedconcat|fedconcat_id|fedconcat_ib|dp_fedconcat"
_BASELINES = "method=fedavg|fedprox|moon|fedrs|fedlc"

_FEDCONCAT = (
    Rule("", way="last", measure="global", seeds=3),
    Rule("dataset=cifar10|svhn", config="fedconcat_small.py"),
    Rule("dataset=svhn", {"data.name": "svhn", "data.augment": "none"}),
    Rule("dataset=fmnist", config="fmnist_label_skew.py"),
    Rule("dataset=cifar100|tiny_imagenet", config="fedconcat_large.py"),
    Rule("dataset=tiny_imagenet", {"data.name": "tiny_imagenet", "data.normalize": "half"}),
    Rule("partition=#C=3", {"partition.classes": "3"}),
    Rule("partition=Dir(0.1)", {"partition.name": "dirichlet", "partition.alpha": "0.1"}),
    Rule("partition=Dir(0.5)", {"partition.name": "dirichlet", "partition.alpha": "0.5"}),
    Rule(
        "partition=Dir(0.1)",
        note="that the third partition is Dir(0.1) is inferred: the paper's label is not legible",
    ),
    Rule(
        "method=central",
        {"partition.name": "iid", "run.rounds": "20", "local.epochs": "10"},
        note="central: 200 epochs as in the paper, but momentum is reset every 10",
    ),
    Rule("method=fedprox", note="fedprox: the paper's grid of mu is not legible; mu=0.01 here"),
    Rule(
        "dataset=cifar10;method=moon",
        note="moon: the paper's grid of mu is not legible; mu=0.1 here",
    ),
    Rule("dataset=svhn;method=moon", {"method.mu": "0.01"}),
    Rule(
        "dataset=fmnist|svhn;method=moon",
        note="moon: the paper's grid of mu, and its additional values for fmnist and svhn, are not"
        " legible; mu=0.01 here",
    ),
    Rule(
        "dataset=cifar100|tiny_imagenet;method=moon",
        note="moon: the paper's grid of mu is not legible; mu=1 here",
    ),
    Rule("method=fedlc", note="fedlc: the paper's grid of tau is not legible; tau=1 here"),
    Rule(
        "table=2|13",
        {"partition.num_clients": "{num_clients}", "run.rounds": "100"},
        seeds=1,
        note="the rounds of Tables 2 and 13 are not stated: twice the default ones, as in D.7",
    ),
    Rule("table=2|13;num_clients=100", {"run.cohort": "50"}),
    Rule("table=2|13;num_clients=200", {"run.cohort": "100"}),
    Rule("table=11", {"run.cohort": "20", "run.rounds": "100"}),
    Rule(f"table=2|11|13;{_OF_FEDCONCAT}", _TWICE),
    Rule(f"table=2|11|13;dataset=fmnist;{_OF_FEDCONCAT}", {"method.classifier_rounds": "346"}),
    Rule(
        f"table=3;dataset=cifar100|tiny_imagenet;partition=Dir(0.1);{_OF_FEDCONCAT}",
        {"method.encoder_decay": "1.99e-3"},
    ),
    Rule(
        f"table=3;dataset=tiny_imagenet;partition=Dir(0.5);{_OF_FEDCONCAT}",
        {"method.encoder_decay": "1.99e-3"},
    ),
    Rule(
        f"table=3;dataset=cifar100;partition=Dir(0.5);{_OF_FEDCONCAT}",
        {"method.encoder_decay": "4.99e-3"},
    ),
    Rule("method=fedconcat_ifca", {"method.clustering": "ifca"}, method="fedconcat"),
    Rule("method=fedconcat_fesem", {"method.clustering": "fesem"}, method="fedconcat"),
    Rule("method=fedconcat_fedsoft", {"method.clustering": "fedsoft"}, method="fedconcat"),
    Rule(
        "method=dp_fedconcat",
        {"method.epsilon": "5"},
        method="fedconcat",
        note="dp_fedconcat: the paper's epsilon is not legible; 5 here",
    ),
    Rule("method=fedconcat_ib", {"method.infer_from": "bias"}, method="fedconcat_id"),
    Rule(f"table=9;{_BASELINES}", {"model.name": "concat_cnn"}),
    Rule(f"table=9;{_OF_FEDCONCAT}", {"method.encoder_rounds": "231"}),
    Rule(f"table=9;dataset=fmnist;{_OF_FEDCONCAT}", {"method.classifier_rounds": "173"}),
    Rule(
        "table=12",
        lacks="the paper does not say which of its other adaptations to large models are used, and"
        " the numbers agree with neither of its entries in Table 3",
    ),
)

_FEDC2I = (
    Rule("", way="last", measure="domains.{column}", seeds=3),
    Rule("column=avg", measure="accuracy.mean"),
    Rule("column=synth_digits", measure="domains.synth"),
    Rule(
        "dataset=digits_five",
        {"data.name": "digits_five", "data.sampling": "fedc2i", "data.size": "64"},
        config="fedc2i_digits.py",
    ),
    Rule("dataset=office_caltech10", config="fedc2i_office.py"),
    Rule("method=fedc2i", {"method.gamma": "{gamma}"}),
    Rule(
        "variant=lambda_only",
        {"method.head": "local"},
        note="lambda_only: the paper does not say how the classifier is aggregated; local here",
    ),
    Rule("variant=class_matrix_only_local_extractor", {"method.body": "local"}),
    Rule("variant=class_matrix_only_fedavg_extractor", {"method.body": "mean"}),
)

_FEDPICK = (
    Rule("", way="max_per_domain", measure="domains.{column}", seeds=5),
    Rule("column=synth_digits", measure="domains.synth"),
    Rule(
        "dataset=digits_five",
        {"data.name": "digits_five", "model.name": "fedbn_cnn"},
        config="fedpick_digits.py",
    ),
    Rule("dataset=digits_five;method=fedper|fedrep|fedpick", {"method.head_layers": "3"}),
    Rule("dataset=office_caltech10", config="fedpick_office.py"),
    Rule("dataset=domainnet10", config="fedpick_domainnet.py"),
    Rule("variant=no_pfsm", {"method.mask": "none"}),
    Rule("variant=no_lce_loss", {"method.lam_lce": "0"}),
    Rule("variant=no_entropy_loss", {"method.lam_ent": "0"}),
    Rule("variant=no_distillation_loss", {"method.lam_dis": "0"}),
    Rule("variant=soft_mask", {"method.mask": "soft"}),
    Rule("variant=share_bn", {"method.share_bn": "True"}),
    Rule("variant=share_pfsm", {"method.share_selection": "True"}),
    Rule("variant=no_ensemble", {"method.ensemble": "none"}),
)

_HFEDF = (
    Rule("", {"partition.domains": "{d}"}, way="last", measure="{score}", seeds=3),
    Rule("", per_client=True, note="the clients' optimizer is not stated; Adam here"),
    Rule("dataset=pacs", {"data.unseen": "{target}"}, config="hfedf_pacs.py"),
    Rule("dataset=office_home", config="hfedf_office_home.py"),
    Rule("dataset=vlcs", config="hfedf_vlcs.py"),
    Rule("target=art", {"data.unseen": "Art"}),
    Rule("target=clipart", {"data.unseen": "Clipart"}),
    Rule("target=product", {"data.unseen": "Product"}),
    Rule("target=real_world", {"data.unseen": "Real World"}),
    Rule("target=caltech101", {"data.unseen": "Caltech101"}),
    Rule("target=labelme", {"data.unseen": "LabelMe"}),
    Rule("target=sun09", {"data.unseen": "SUN09"}),
    Rule("target=voc2007", {"data.unseen": "VOC2007"}),
    Rule("target=avg;dataset=pacs", over=("art_painting", "cartoon", "photo", "sketch")),
    Rule("target=avg;dataset=office_home", over=("art", "clipart", "product", "real_world")),
    Rule("target=avg;dataset=vlcs", over=("caltech101", "labelme", "sun09", "voc2007")),
    Rule("variant=no_gradalign|no_gradalign_no_ema", {"method.grad_align": "False"}),
    Rule("variant=no_ema|no_gradalign_no_ema", {"method.ema": "1.0"}),
    Rule("variant=random_embeddings", {"method.embedding": "random"}),
    Rule(
        "method=central;score=id",
        note="central, id: the mean over the clients' validation rows, not over their union",
    ),
    Rule(
        "method=fedgma;dataset=office_home|vlcs",
        note="fedgma: server steps of 1; the paper's 0.01 would hardly move the model",
    ),
)

_IMAGENET = {"data.normalize": "imagenet", "model.pretrained": "{model}.safetensors"}
_INDEXED = "index=federated|global"
CLIENT2VEC_BASES = {"moon": {"projection": "mlp256"}}  # of base methods, with and without index

_CLIENT2VEC = (
    Rule("", way="max_over_rounds", measure="accuracy.mean", seeds=3),
    Rule(
        "dataset=shakespeare",
        config="client2vec_shakespeare.py",
        note="a client is a role of LEAF's sample; set --config.partition.num_clients=ROLES and"
        " --config.run.cohort=ROLES/10 accordingly",
    ),
    Rule(
        "dataset=cifar10",
        config="client2vec_cifar10.py",
        note="initialization and normalization of ResNet-18 on CIFAR-10 are not stated; batch"
        " normalization, trained from scratch here",
    ),
    Rule("dataset=domainnet50", config="client2vec_domainnet.py"),
    Rule("dataset=domainnet50;model=mobilenet_v2", _IMAGENET),
    Rule(
        "dataset=domainnet50;model=resnet18",
        {"model.name": "resnet18", "model.stem": "imagenet", **_IMAGENET},
    ),
    Rule("model=cct_7_3x1", {"model.name": "cct7"}),
    Rule(
        _INDEXED,
        {
            "method.base": "{method}",
            "method.index": "{index}",
            "method.index_epochs": "500",
            "embedding.name": "clip",
        },
        method="client2vec",
    ),
    Rule("cases=i", {"method.aggregation": "False", "method.local_training": "False"}),
    Rule("cases=i+ii", {"method.local_training": "False"}),
    Rule(
        f"{_INDEXED};table=1|2|4|6|7",
        note="tau is the paper's best of 0.1, 0.5, 1, 2; 1 here",
    ),
    Rule(
        f"{_INDEXED};cases=i+ii|i+ii+iii",
        note="gamma is the paper's best of 0.1, 0.5, 0.9; 0.5 here",
    ),
    Rule(
        "method=fedavgm",
        {"method.beta": "0.5"},
        note="fedavgm: beta is the paper's best of 0.1, 0.5, 1; 0.5 here",
    ),
    Rule("method=moon", note="moon: mu is the paper's best of 0.01, 0.1, 1; 1 here"),
    *(
        Rule(f"method={base};{_INDEXED}", {f"method.{k}": v for k, v in settings.items()})
        for base, settings in CLIENT2VEC_BASES.items()
    ),
    Rule("method=fediir", note="fediir: ema is the paper's best of 0.95, 0.5, 0.1; 0.95 here"),
    Rule("table=2", note="base and index of Table 2 are not printed; FedAvg, global here"),
    Rule("variant=feature_average", {"method.index": "feature_average"}),
    Rule("variant=class_prototypes", {"method.index": "class_prototypes"}),
    Rule("variant=local_model_weights", {"method.index": "local_weights"}),
    Rule("variant=no_orth_loss", {"method.weight_orth": "0"}),
    Rule("variant=no_text_align_loss", {"method.weight_sim": "0"}),
    Rule("variant=no_recon_loss", {"method.weight_recon": "0"}),
    Rule("variant=feature_index_only", {"method.index_part": "feature"}),
    Rule("variant=label_index_only", {"method.index_part": "label"}),
    Rule("variant=no_local_orth_regularization", {"method.local_orth": "False"}),
    Rule(f"table=5;{_INDEXED}", {"method.sampling_tau": "{tau}"}),
    Rule(f"table=6;{_INDEXED}", {"method.index_epochs": "{index_epochs}"}),
    Rule(f"table=7;{_INDEXED}", {"method.local_weight": "{local_reg_weight}"}),
)

RULES = {
    "client2vec": _CLIENT2VEC,
    "fedc2i": _FEDC2I,
    "fedconcat": _FEDCONCAT,
    "fedpick": _FEDPICK,
    "hfedf": _HFEDF,
}
