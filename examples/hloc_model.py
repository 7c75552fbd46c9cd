"""A folder of photos to a model with hloc: its features, pairs and reconstruction, and ananet's matcher.

pip install "ananet[colmap,features,h5]"
git clone https://github.com/cvg/Hierarchical-Localization
PYTHONPATH=Hierarchical-Localization python examples/hloc_model.py PHOTOS OUTPUT [--matcher NN-mutual]
"""

import argparse
from pathlib import Path

from hloc import extract_features, match_features, pairs_from_exhaustive, reconstruction

from ananet.integrations import hloc

# Of `hloc.extract_features.confs`; ananet takes the keypoints of any of them.
FEATURES = "sift"
ANANET = {"output": "matches-ananet", "model": {"name": "ananet", "pruner": "ananet@threshold=0.5"}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--matcher", default="ananet", help="ananet (the default), or one of hloc's, such as NN-mutual")
    arguments = parser.parse_args()
    photos, output, matcher = arguments.photos, arguments.output, arguments.matcher
    hloc.register()
    matching = ANANET if matcher == "ananet" else match_features.confs[matcher]
    features, pairs, matches = output / "features.h5", output / "pairs.txt", output / f"{matcher}.h5"
    # Half precision would round keypoints of large photos to whole pixels.
    extract_features.main(extract_features.confs[FEATURES], photos, feature_path=features, as_half=False)
    pairs_from_exhaustive.main(pairs, features=features)
    match_features.main(matching, pairs, features, matches=matches)
    model = reconstruction.main(output / matcher, photos, pairs, features, matches)
    if model is not None:
        seen, points = model.num_reg_images(), model.num_points3D()
        error = model.compute_mean_reprojection_error()
        print(f"{matcher}: {seen} photos registered, {points} points, reprojection error {error:.2f} px")


# hloc's loaders are processes of their own.
if __name__ == "__main__":
    main()
