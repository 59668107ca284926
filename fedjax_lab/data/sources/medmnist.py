"""MedMNIST (Yang et al. 2023, Scientific Data 10): eleven sets of medical images, as .npz files.

Format: https://medmnist.com. Each file has {train,val,test}_images [N, H, W] or [N, H, W, 3] uint8,
and {train,val,test}_labels [N, 1].
"""

from pathlib import Path
from typing import Annotated

import numpy as np

from fedjax_lab.data import safe
from fedjax_lab.data.dataset import Dataset, pooled
from fedjax_lab.data.formats import npz
from fedjax_lab.data.formats.image_arrays import images_of, labels_of
from fedjax_lab.data.places import fetched, locate
from fedjax_lab.errors import BadInput, check_choice
from fedjax_lab.ranges import OneOf, checked

ORGANS = (
    "bladder; femur-left; femur-right; heart; kidney-left; kidney-right; liver; lung-left; "
    "lung-right; pancreas; spleen"
)
CLASSES = {  # the classes of each set, in the order of its labels
    name: tuple(classes.split("; "))
    for name, classes in {
        "pathmnist": (
            "adipose; background; debris; lymphocytes; mucus; smooth muscle; normal colon mucosa; "
            "cancer-associated stroma; colorectal adenocarcinoma epithelium"
        ),
        "dermamnist": (
            "actinic keratoses and intraepithelial carcinoma; basal cell carcinoma; "
            "benign keratosis-like lesions; dermatofibroma; melanoma; melanocytic nevi; "
            "vascular lesions"
        ),
        "octmnist": "choroidal neovascularization; diabetic macular edema; drusen; normal",
        "pneumoniamnist": "normal; pneumonia",
        "retinamnist": "0; 1; 2; 3; 4",
        "breastmnist": "malignant; normal or benign",
        "bloodmnist": (
            "basophil; eosinophil; erythroblast; immature granulocytes; lymphocyte; monocyte; "
            "neutrophil; platelet"
        ),
        "tissuemnist": (
            "collecting duct, connecting tubule; distal convoluted tubule; "
            "glomerular endothelial cells; interstitial endothelial cells; leukocytes; podocytes; "
            "proximal tubule segments; thick ascending limb"
        ),
        "organamnist": ORGANS,
        "organcmnist": ORGANS,
        "organsmnist": ORGANS,
    }.items()
}
SIZES = (28, 64, 128, 224)  # sides of the images, in pixels


@checked("data")
def medmnist(
    *,
    dataset: str = "pathmnist",
    folder: str = "",
    size: Annotated[int, OneOf(SIZES)] = 28,
    merge_valid: bool = False,
) -> Dataset:
    """MedMNIST dataset: images [size, size, 1 or 3], with the published training and test split.

    dataset: pathmnist, dermamnist, octmnist, pneumoniamnist, retinamnist, breastmnist, bloodmnist,
        tissuemnist, organamnist, organcmnist or organsmnist. The grades of RetinaMNIST are used as
        classes. ChestMNIST is refused, because its images have several labels each.
    folder: the folder with the file; empty: ~/.cache/fedjax_lab and data/ are searched.
    size: the side of an image, 28, 64, 128 or 224; there is a file for each.
    merge_valid: append the validation images to the training images; otherwise they are left out.
    """
    if dataset == "chestmnist":
        raise BadInput(
            "config.data.dataset=chestmnist has 14 labels for each image, but a run needs exactly"
            f" one; valid: {', '.join(CLASSES)}"
        )
    check_choice("data.dataset", dataset, CLASSES)
    splits = ("train", "val", "test") if merge_valid else ("train", "test")
    with safe.remedied(_remedy(dataset, size)):
        file = find(dataset, folder, size)
        images, labels = zip(*_read(file, splits, size, len(CLASSES[dataset])), strict=True)
    made = pooled(np.concatenate(images), [np.concatenate(labels[:-1])], [labels[-1]])
    return Dataset(**made, classes=CLASSES[dataset], domains=(dataset,))


def file_name(dataset: str, size: int) -> str:
    """The published file name of a set with images of this size."""
    return f"{dataset}.npz" if size == 28 else f"{dataset}_{size}.npz"


def find(dataset: str, folder: str, size: int = 28) -> Path:
    """The path of that file."""
    name = file_name(dataset, size)
    return locate(folder, (name, f"medmnist/{name}"))


def _remedy(dataset, size):
    """What to do if the file is missing or damaged, for messages."""
    by_hand = "name the folder of the file with --config.data.folder"
    if size == 28:
        return fetched(dataset, by_hand)
    address = f"https://zenodo.org/records/10519652/files/{file_name(dataset, size)}"
    return f"fetch {address} and {by_hand} (or move it to ~/.cache/fedjax_lab)"


def _read(
    file: Path, splits: tuple[str, ...], size: int, num_classes: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The images [N, size, size, channels] and labels [N] of each split."""
    keys = [f"{split}_{kind}" for split in splits for kind in ("images", "labels")]
    with safe.reading(file, problem="is damaged or not a file of MedMNIST"):
        arrays = npz.read(file, keys, problem="is damaged")
    made = []
    for split in splits:
        x = images_of(file, arrays[f"{split}_images"], (size, size, 1), (size, size, 3))
        labels = arrays[f"{split}_labels"]
        made.append((x, labels_of(file, labels, len(x), range(num_classes))))
    if len({x.shape[1:] for x, _ in made}) > 1:
        raise safe.Fault(f"{file}: only some of its splits have color images")
    return made
