"""A dataset of chats with any number of images, as `dataset.yaml` names it: pickled lists of images in one part."""

import pickle
import re
from dataclasses import dataclass

from megatron.energon.epathlib.epath import EPath
from megatron.energon.flavors.base_dataset import Sample
from megatron.energon.flavors.webdataset import DefaultDecoderWebdatasetFactory
from webdataset.autodecode import Decoder, imagehandler


@dataclass
class ChatMLSample(Sample):
    imgs: list
    conversation: list


class PickledImages:
    """Decodes parts that end with `jpgs`: a pickled list of encoded images."""

    def __init__(self, image_decode):
        self.handler = imagehandler(image_decode)

    def __call__(self, key, data):
        if re.sub(r".*[.]", "", key).lower() != "jpgs":
            return None
        return [self.handler("png", image) for image in pickle.loads(data)]


class ChatMLWebdataset(DefaultDecoderWebdatasetFactory[ChatMLSample]):
    __sample_type__ = ChatMLSample

    def __init__(self, path: EPath, *, auto_decode: bool = True, **kwargs):
        super().__init__(path, **kwargs)
        assert (path / ".nv-meta" / "dataset.yaml").is_file()
        if auto_decode:
            self._decoder = Decoder([imagehandler("torchrgb"), PickledImages("torchrgb")])

    def config(self):
        return {"type": type(self).__qualname__, "path": self.path.name}
