"""Prepares the shards of all other programs, by Energon's function: `python prepare_data.py FOLDER REPORT`."""

import json
import sys

import yaml
from megatron.energon.epathlib import EPath
from megatron.energon.flavors import BaseWebdatasetFactory
from megatron.energon.flavors.webdataset.config import MAIN_FOLDER_NAME

CONFIGS = {
    "vqa": {
        "sample_type": {"__module__": "megatron.energon", "__class__": "VQASample"},
        "field_map": {"image": "png", "context": "json[question]", "answers": "json[answers]"},
    },
    "chat": {
        "__module__": "chatml_dataset",
        "__class__": "ChatMLWebdataset",
        "field_map": {"conversation": "json", "imgs": "jpgs"},
    },
    "latents": {"__module__": "megatron.energon", "__class__": "CrudeWebdataset", "subflavors": {"kind": "latents"}},
    "captions": {
        "sample_type": {"__module__": "megatron.energon", "__class__": "CaptioningSample"},
        "field_map": {"image": "png", "caption": "txt"},
    },
    "texts": {
        "sample_type": {"__module__": "megatron.energon", "__class__": "TextSample"},
        "field_map": {"text": "txt"},
    },
}


def main(argv):
    root, report = EPath(argv[0]), {}
    for name, config in CONFIGS.items():
        folder = root / name
        shards = sorted(path.relative_to(folder) for path in folder.glob("*.tar"))
        found = BaseWebdatasetFactory.prepare_dataset(
            folder, shards, split_parts_ratio=[("train", 3), ("val", 1)], shuffle_seed=None, workers=1
        )
        with (folder / MAIN_FOLDER_NAME / "dataset.yaml").open("w") as file:
            yaml.dump(config, file)
        info = json.loads((folder / MAIN_FOLDER_NAME / ".info.json").read_text())
        splits = yaml.safe_load((folder / MAIN_FOLDER_NAME / "split.yaml").read_text())
        report[name] = {
            "shards": shards,
            "parts": sorted(found[0] if isinstance(found, tuple) else found),
            "counts": info["shard_counts"],
            "splits": splits["split_parts"],
            "names": [folder.name, (folder / "a" / ".." / "b.txt").relative_to(root), folder.parent == root],
        }
    EPath(argv[1]).write_text(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1:])
