"""A program of its own: COLMAP's verification of a copy of a database, `python verify_copy.py COPY`.

COLMAP throws in threads of its own, which ends the process: it must not be the user's. Prints what is wrong with the
database and returns 1. Without matches it only checks cameras. Importing ananet would take seconds.
"""

import os
import sqlite3
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

CAMERAS = """SELECT camera_id, coalesce('image ' || min(image_id) || ', ' || name, 'of no image')
    FROM cameras LEFT JOIN images USING (camera_id) GROUP BY camera_id"""
NO_CAMERA = """SELECT image_id, name, camera_id FROM images WHERE camera_id NOT IN (SELECT camera_id FROM cameras)"""


def main(path: str) -> int:
    # Importing it catches signals of the process.
    import pycolmap

    threading.Thread(target=_end_with_parent, daemon=True).start()
    # COLMAP's messages on stderr break progress bars.
    pycolmap.logging.minloglevel = pycolmap.logging.Level.ERROR.value
    if fault := _fault(path, pycolmap.Database.open):
        print(fault)
        return 1
    with pycolmap.Database.open(path) as database:
        matched = database.num_matched_image_pairs()
    if matched:
        options = pycolmap.TwoViewGeometryOptions()
        options.ransac.random_seed = 0
        pycolmap.geometric_verification(path, two_view_geometry_options=options)
    return 0


def _end_with_parent() -> None:
    """Exit when stdin ends, as it does when the parent was killed."""
    os.read(0, 1)
    os._exit(1)


def _fault(path: str, open_database: Callable[[str], Any]) -> str | None:
    """What COLMAP's threads would throw at."""
    with closing(sqlite3.connect(path)) as connection:
        connection.text_factory = lambda name: name.decode(errors="replace")
        cameras = connection.execute(CAMERAS).fetchall()
        for image, name, camera in connection.execute(NO_CAMERA):
            return f"expected a camera of image {image}, {name}; there is no camera {camera}"
        described = connection.execute("SELECT image_id, name FROM images JOIN keypoints USING (image_id)").fetchall()
    with open_database(path) as database:
        for camera, image in cameras:
            if reason := _reason(database.read_camera, camera):
                return f"expected a camera that COLMAP knows, got camera {camera} ({image}): {reason}"
        for image, name in described:
            if reason := _reason(database.read_keypoints, image):
                return f"expected keypoints as COLMAP stores them; those of image {image}, {name}, are not: {reason}"
    return None


def _reason(read: Callable[[int], object], number: int) -> str | None:
    try:
        read(number)
    except Exception as error:
        # Without the line of COLMAP's source.
        return str(error).strip().rpartition("] ")[2]
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
