"""dapolab's own names, which 06-dapo and gpu_runs log too: nothing to translate."""

from dapolab.logs.schema import BY_COLUMN
from dapolab.logs.vocabulary import Key, Vocabulary

DAPOLAB = Vocabulary(
    "dapolab", tuple(Key(name, (name,)) for name in BY_COLUMN), marks=tuple(BY_COLUMN)
)
