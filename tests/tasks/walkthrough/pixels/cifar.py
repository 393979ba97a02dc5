"""A map-style dataset with the arguments that torchvision's CIFAR10 has."""

from pathlib import Path

from torch.utils.data import Dataset

from energon_dali.tasks.vision.igpt.cifar_archive import read_archive
from tests.tasks.igpt.archives import write_archive


class SmallCIFAR10(Dataset):
    def __init__(self, root, train=True, transform=None, download=False):
        path = Path(root) / "cifar-10-python.tar.gz"
        if download and not path.exists():
            write_archive(Path(root))
        archive = read_archive(path)
        self.part = archive.train if train else archive.test
        self.transform = transform

    def __len__(self):
        return len(self.part.labels)

    def __getitem__(self, index):
        image = self.part.pixels[index]
        return image if self.transform is None else self.transform(image), int(self.part.labels[index])
