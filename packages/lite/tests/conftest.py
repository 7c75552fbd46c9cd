import sys
from pathlib import Path

# The package as it lies here, installed or not.
sys.path.insert(0, str(Path(__file__).parents[1] / "src"))
