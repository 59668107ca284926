"""Determines the requirements of a run: missing data and weights, and its amount of training."""

import functools
from pathlib import Path

import ml_collections

import fedjax_lab
from fedjax_lab.data.fetching import presence
from fedjax_lab.data.partitions.partitioning import count_new
from fedjax_lab.data.sources import digits_five
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment import experiment
from fedjax_lab.experiment.config import resolve
from fedjax_lab.papers.fedconcat.communication import default_encoder_rounds

EXAMPLES = {  # number of training examples, without those of the unseen domain
    "fashion_mnist": 60_000,
    "mnist": 60_000,
    "cifar10": 50_000,
    "cifar100": 50_000,
    "svhn": 73_257,
    "tiny_imagenet": 100_000,
    "digits_five": 5_000,
    "domainnet": 3_000,
    "pacs": 6_744,  # 90 % of three of the four domains, on average
    "vlcs": 7_242,
    "office_home": 10_522,
}
OFFICE_CALTECH = {"fedpick": 500, "fedc2i": 722}
PROBE = [("local.steps", "5"), ("run.rounds", "2"), ("run.eval_every", "2")]  # of a short run


def missing(config: ml_collections.ConfigDict) -> str:
    """The first thing that a run needs and this machine lacks, in words; "" if nothing is missing.

    It may be the data, pretrained weights or CLIP.
    """
    pretrained, embedding = config.model.get("pretrained", ""), config.embedding
    if absent := _no_data(tuple(config.data.items())):
        return absent
    if pretrained and not Path(pretrained).exists():
        flag = "--config.model.pretrained"
        return f"no file {pretrained} with first weights; name one with {flag}"
    if config.method.name == "client2vec" and embedding.name == "clip":
        return _no_clip(embedding.folder, embedding.model)
    return ""


@functools.cache
def _no_data(settings):
    data = dict(settings)
    if presence.has_files(data["name"], data.get("folder", "")):
        return ""
    try:
        experiment.load_data(resolve({"data": data}).data)
    except BadInput as error:
        return str(error)
    return ""


def domains(config: ml_collections.ConfigDict) -> tuple[str, ...]:
    """The domains of the data set's release on this machine if some are missing; otherwise ()."""
    if config.data.name != "digits_five":
        return ()
    try:
        names = digits_five.domains(digits_five.find(config.data.folder, config.data.source))
    except BadInput:
        return ()
    return names if len(names) < len(digits_five.FOLDERS) else ()


@functools.cache
def _no_clip(folder, model):
    from fedjax_lab.models.embeddings import clip

    try:
        clip.find_model(folder, model)
        clip.check_packages()  # last, because it is slow
    except (BadInput, ImportError) as error:
        return f"CLIP is not available: {error}"
    return ""


def cost(config: ml_collections.ConfigDict) -> int | None:
    """The number of examples that the clients of one seed train on, counted in every epoch.

    None if it is not known without the data. The estimate includes only the encoder rounds of
    FedConcat, because the classifier rounds are short. It leaves out the choice of clusters in IFCA
    and similar methods, the client index of Client2Vec, and all evaluations.
    """
    data, method, run = config.data, config.method, config.run
    examples = EXAMPLES.get(data.name) or (
        OFFICE_CALTECH[data.sampling] if data.name == "office_caltech" else None
    )
    if examples is None:
        return None
    if present := domains(config):
        examples = examples * len(present) // len(digits_five.FOLDERS)
    clients = config.partition.num_clients
    if not clients:  # the data determine the number of clients
        return None
    trained = clients - count_new(clients, config.partition.new_clients)
    share = (trained if method.name == "central" else run.cohort or trained) / clients
    epochs = config.local.epochs
    if method.name == "fedrep":
        epochs = method.head_epochs + method.body_epochs
    rounds = run.rounds
    if method.name in ("fedconcat", "fedconcat_id"):
        rounds = method.encoder_rounds or default_encoder_rounds(run.rounds)
    return round(examples * share * epochs * rounds)


def speed(config: ml_collections.ConfigDict) -> float:
    """The number of examples per second on which the clients of this run train, measured.

    Each client makes five steps in each of two rounds. Compilation and evaluations do not count.
    """
    short = resolve(config.to_dict(), PROBE)
    return fedjax_lab.run(short, seeds=[0], quiet=True).summary["examples_per_second"]
